"""A fault as it is kept: lines before and after, found again in files that have changed elsewhere."""

from __future__ import annotations

import ast
import difflib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.mutants.operators import Fault

LIST = Path(__file__).with_name("mutants.json")
ROOT = Path(__file__).parents[2]
#: What the list says of a mutant. One that survives is not kept as such: it gets a test, or a reason.
VERDICTS = ("caught", "equivalent", "gone", "not judged")


@dataclass(frozen=True)
class Mutant:
    """One small fault.

    Args:
        name: room and number.
        room: whose tests should notice it.
        file: relative to the root.
        within: the function or class that holds the lines, with those around it; "" is the module.
        operator: what was done.
        before: whole lines as they are.
        after: whole lines with the fault.
        nth: which of equal lines within the function, from 0.
        equivalent: why no test can notice it; "" is a fault that tests must notice.
        gone: why the package has no such lines any more; "" where it has.
        caught: the file that noticed it when it was last judged; "" if nothing did, or it was not judged.
    """

    name: str
    room: str
    file: str
    within: str
    operator: str
    before: str
    after: str
    nth: int = 0
    equivalent: str = ""
    gone: str = ""
    caught: str = ""

    @staticmethod
    def of(room: str, file: str, source: str, fault: Fault, text: str) -> Mutant:
        old, new = source.splitlines(keepends=True), text.splitlines(keepends=True)
        start = fault.node.lineno - 1
        end = fault.node.end_lineno or start + 1
        before = "".join(old[start:end])
        after = "".join(new[start : end + len(new) - len(old)])
        first = _span(source, fault.within)[0]
        nth = _starts(old[first:start], before)
        return Mutant("", room, file, fault.within, fault.operator, before, after, nth)

    def named(self, name: str) -> Mutant:
        return replace(self, name=name)

    def excused(self, reason: str) -> Mutant:
        return replace(self, equivalent=reason)

    def judged(self, caught: str) -> Mutant:
        return replace(self, caught=caught)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.gone or self.equivalent:
            return "gone" if self.gone else "equivalent"
        return "caught" if self.caught else "not judged"

    def applied(self, source: str) -> str | None:
        """The module's text with the fault; None where the lines are no longer there."""
        lines = source.splitlines(keepends=True)
        span = _span(source, self.within)
        height = self.before.count("\n")
        places = [
            start
            for start in range(span[0], span[1] - height + 1)
            if "".join(lines[start : start + height]) == self.before
        ]
        if len(places) <= self.nth:
            return None
        start = places[self.nth]
        return "".join([*lines[:start], self.after, *lines[start + height :]])

    def found(self) -> Mutant:
        """The same fault where its lines stand today; as it is where they are gone or in several places."""
        here = ROOT / self.file
        if here.is_file() and self.applied(here.read_text(encoding="utf-8")) is not None:
            return self
        sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "fedmf").rglob("*.py")}
        holding = [path for path, text in sources.items() if f"\n{self.before}" in text]
        if len(holding) != 1 or sources[holding[0]].count(self.before) != 1:
            return self
        return replace(self, file=str(holding[0].relative_to(ROOT)), within="", nth=0)

    @property
    def change(self) -> str:
        """The lines that differ, as one line."""
        lines = difflib.ndiff(self.before.splitlines(), self.after.splitlines())
        return " ".join(" ".join(line.split()) for line in lines if line[:1] in "-+")


def _starts(lines: list[str], block: str) -> int:
    height = block.count("\n")
    return sum("".join(lines[i : i + height]) == block for i in range(len(lines)))


def _span(source: str, within: str) -> tuple[int, int]:
    """First and last line (excluded) of a function or class; nothing where there is none of the name."""
    node: ast.AST = ast.parse(source)
    span = (0, len(source.splitlines()))
    for name in filter(None, within.split(".")):
        inner = [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name
        ]
        if not inner:
            return (0, 0)
        node = inner[0]
        span = (inner[0].lineno - 1, inner[0].end_lineno or 0)
    return span


def kept() -> list[Mutant]:
    return [Mutant(**entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))]


def keep(mutants: list[Mutant]) -> None:
    LIST.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1, ensure_ascii=False) + "\n")
