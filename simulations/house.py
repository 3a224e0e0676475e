"""Count the house: rooms, files, code lines, keys, branches on features, circles and arrows up of imports.

    python simulations/house.py [ROOT] [--rooms] [--branches]

A code line is one with a token other than a comment, a docstring or white space, so that neither comments nor
empty lines count. A branch on a feature is a place outside `fedmf/parts/` that asks whether an optional
quantity is there: `x is None`, `x is not None`, `isinstance(x, C)`, `x.adapts`, `canaries.count`, `inflation`
compared with a number, where x or C is named in `QUANTITIES` or `CLASSES`. A circle is a strongly connected
set of modules, imports inside functions included; an arrow up is an import of a room above.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx

#: What is optional in a run or stream, by the names it goes by, and by the classes of its values.
QUANTITIES = re.compile(
    "budgets|canaries|clip_norms|course|energies|evaluations?|evaluator|inflation|losses|lost|max_epsilon|pair"
    "|quantile|second(_moment|_noise|_release|_std|_variance)?|stored|team|user_budgets"
)
CLASSES = re.compile(
    "BlockEnergies|CountedSum|DiagonalMoment|FixedClipping|FixedPointPair|NotPrivateEvaluation|PairRelease"
    "|PrivateEvaluation|QuantileClipping|RoundedRelease"
)
SILENT = frozenset((tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT))
WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Lines with tokens that are neither comments nor docstrings."""
    spoken: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT and token.type != tokenize.ENDMARKER:
            spoken.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            spoken -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(spoken)


def _named(node: ast.expr) -> str:
    """The last part of a name, without the underscores before it and what stands in brackets."""
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
    return ast.unparse(node).rsplit(".", 1)[-1].lstrip("_")


def branches(source: str) -> Iterator[int]:
    """The lines that ask for an optional quantity."""
    for node in ast.walk(ast.parse(source)):
        asks = False
        if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            name, by_identity = _named(node.left), isinstance(node.ops[0], ast.Is | ast.IsNot)
            asks = QUANTITIES.fullmatch(name) is not None if by_identity else name == "inflation"
        elif isinstance(node, ast.Call) and _named(node.func) == "isinstance" and len(node.args) == 2:
            names = (part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name))
            asks = any(map(CLASSES.fullmatch, names))
        elif isinstance(node, ast.Attribute):
            asks = node.attr == "adapts" or (node.attr == "count" and _named(node.value) == "canaries")
        if asks:
            yield getattr(node, "lineno", 0)


def _imported(path: Path, package: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Names of modules that a module imports, wherever in it."""
    here = ("fedmf", *path.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                yield from (name for name in (f"{module}.{alias.name}", module) if name in modules)


def imports(root: Path) -> tuple[list[int], int]:
    """Sizes of circles of modules, and the number of arrows up, by the floors that the tests know."""
    package = root / "fedmf"
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph = networkx.DiGraph(
        (name, other)
        for name, path in modules.items()
        for other in _imported(path, package, modules)
        if "." in name and name != other
    )
    circles = [len(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    tests = (root / "tests" / "test_architecture.py").read_text(encoding="utf-8")
    floors = ast.literal_eval(tests.partition("\nFLOORS = ")[2].partition("\n)\n")[0] + ")")
    floor = {room: i for i, rooms in enumerate(floors) for room in rooms}
    crossed = ((name.split(".")[1], other.split(".")[1]) for name, other in graph.edges if "." in other)
    up = sum(one != other and floor[other] >= floor[one] for one, other in crossed)
    return sorted(circles, reverse=True), up


def keys(root: Path) -> int:
    """Configuration keys, as pyproject.toml lists them for Flower."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("# BEGIN generated by make tables")[2].partition("# END")[0]
    return sum(" = " in line for line in section.splitlines())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--rooms", action="store_true", help="code lines and files of each room")
    parser.add_argument("--branches", action="store_true", help="branches on features of each file")
    given = parser.parse_args()
    inside = {
        part: {path: path.read_text(encoding="utf-8") for path in sorted((given.root / part).rglob("*.py"))}
        for part in ("fedmf", "tests", "simulations")
    }
    for part, files in inside.items():
        print(f"{part}: {len(files)} files, {sum(map(code_lines, files.values()))} code lines")
    package = {path.relative_to(given.root / "fedmf"): text for path, text in inside["fedmf"].items()}
    found = {path: len(list(branches(text))) for path, text in package.items() if path.parts[0] != "parts"}
    print(f"rooms: {len({path.parts[0] for path in package if len(path.parts) > 1})}")
    print(f"configuration keys: {keys(given.root)}")
    print(f"branches on features: {sum(found.values())} in {sum(map(bool, found.values()))} files")
    circles, up = imports(given.root)
    print(f"circles of modules: {len(circles)} {circles}\narrows up: {up}")
    if given.rooms:
        rooms = Counter[str]()
        for path, text in package.items():
            rooms[path.parts[0]] += code_lines(text)
        print("\n".join(f"  {room}: {lines}" for room, lines in rooms.most_common()))
    if given.branches:
        print("\n".join(f"  {n:3} {path}" for path, n in Counter(found).most_common() if n))


if __name__ == "__main__":
    sys.exit(main())
