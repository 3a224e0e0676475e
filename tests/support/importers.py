"""Which test files lead to which modules of the package: what to run after a change.

An import of a name through a room's face leads to the module that defines it, not to the whole room.
"""

from __future__ import annotations

import ast
from collections import deque
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def test_files() -> tuple[str, ...]:
    """All files of tests, relative to the root, in order."""
    return tuple(sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")))


@cache
def distances(test: str) -> dict[str, int]:
    """How many imports lie between a test file and each file of the package that it leads to."""
    found = {test: 0}
    waiting = deque([test, *(path for path in _conftests(test) if found.setdefault(path, 0) == 0)])
    while waiting:
        file = waiting.popleft()
        for imported in _imported(file):
            if imported not in found:
                found[imported] = found[file] + 1
                waiting.append(imported)
    return found


def nearest_tests(files: set[str]) -> list[tuple[int, str]]:
    """Test files that lead to any of the files, with the number of imports between, nearest first."""
    near = [
        (min(found[file] for file in files & found.keys()), test)
        for test in test_files()
        if files & (found := distances(test)).keys()
    ]
    return sorted(near)


def _conftests(test: str) -> list[str]:
    folders = [
        folder for folder in Path(test).parents if folder.parts[:1] == ("tests",) and len(folder.parts) > 1
    ]
    return [str(folder / "conftest.py") for folder in folders if (ROOT / folder / "conftest.py").is_file()]


@cache
def _imported(file: str) -> frozenset[str]:
    """Files of the package and of the tests' support that a file imports, wherever in the file it does."""
    return frozenset(
        path for _, module, name in _names(file) if (path := _defining(module, name)) is not None
    )


@cache
def _names(file: str) -> tuple[tuple[str, str, str], ...]:
    """(name here, module, name there) of each import; "" there is the module itself."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.asname or alias.name, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(Path(file).parent.parts[: len(Path(file).parent.parts) - node.level + 1])
            module = ".".join(filter(None, (base, node.module))) if node.level else node.module or ""
            found += [(alias.asname or alias.name, module, alias.name) for alias in node.names]
    return tuple(found)


def _defining(module: str, name: str, depth: int = 0) -> str | None:
    """The file that defines a name: through faces, down to the module; None outside package and tests."""
    if module.partition(".")[0] not in {"fedmf", "tests", "support"}:
        return None
    inner = _file(f"{module}.{name}") if name else None
    if inner is not None:
        return inner
    file = _file(module)
    if file is None or not name or depth > 6 or not file.endswith("__init__.py"):
        return file
    for here, source, there in _names(file):
        if here == name and (deeper := _defining(source, there, depth + 1)) is not None:
            return deeper
    return file


@cache
def _file(module: str) -> str | None:
    parts = module.split(".")
    folder = Path("tests", *parts) if parts[0] == "support" else Path(*parts)
    for path in (folder.with_suffix(".py"), folder / "__init__.py"):
        if (ROOT / path).is_file():
            return str(path)
    return None
