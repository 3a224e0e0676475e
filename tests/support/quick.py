"""Tests to run after a change of a room: its own and those of rooms that import it, while they are quick.

    python -m tests.support.quick streaming

prints their names for pytest. The choice follows from `tests/seconds.json` and the imports, never from how
busy the machine is.
"""

from __future__ import annotations

import ast
import sys

from tests.support.importers import ROOT, nearest_tests
from tests.support.seconds import kept

#: Processor seconds for the room's own tests, and in all: half a minute to a minute with the start.
OWN, ALL = 15.0, 20.0
#: What a file of tests costs by itself: imports, and functions too quick to be listed.
EACH_FILE = 0.4
#: Tests further from the room than so many imports are of other rooms.
FURTHEST = 2


def chosen(room: str) -> list[str]:
    """Names of test functions and files.

    Raises:
        ValueError: there is no such room.
    """
    package = ROOT / "fedmf"
    files = {str(path.relative_to(ROOT)) for path in (package / room).rglob("*.py")}
    files |= {f"fedmf/{room}.py"} if (package / f"{room}.py").is_file() else set()
    if not room or not files:
        rooms = sorted(path.stem for path in package.iterdir() if path.name[:1] not in "_.")
        raise ValueError(f"room must be one of {', '.join(rooms)}; got {room!r}.")
    near = nearest_tests(files)
    own = [test for _, test in near if test.startswith((f"tests/{room}/", f"tests/test_{room}"))]
    others = [test for distance, test in near if distance <= FURTHEST and test not in own]
    names, spent = _within(OWN, sorted(unit for test in own for unit in _units(test)))
    further, _ = _within(ALL - spent, [unit for test in others for unit in _units(test)])
    return sorted(files & _with_examples()) + names + further


def _within(budget: float, units: list[tuple[float, str]]) -> tuple[list[str], float]:
    """Those that fit, in their order, and what they take."""
    spent, names = 0.0, []
    for cost, name in units:
        if spent + cost <= budget:
            spent += cost
            names.append(name)
    return names, spent


def _units(test: str) -> list[tuple[float, str]]:
    """A file whole where all its functions are quick, else its functions, each with its processor seconds."""
    seconds, functions = kept(), [f"{test}::{name}" for name in _functions(test)]
    if not any(name in seconds for name in functions):
        return [(EACH_FILE, test)]
    return [(seconds.get(name, EACH_FILE / len(functions)), name) for name in functions]


def _functions(test: str) -> list[str]:
    tree = ast.parse((ROOT / test).read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
    ]


def _with_examples() -> set[str]:
    paths = (path for path in (ROOT / "fedmf").rglob("*.py") if not path.name.startswith("gpu"))
    return {str(path.relative_to(ROOT)) for path in paths if ">>>" in path.read_text(encoding="utf-8")}


if __name__ == "__main__":
    try:
        print("\n".join(chosen(sys.argv[1] if len(sys.argv) > 1 else "")))
    except ValueError as error:
        sys.exit(str(error))
