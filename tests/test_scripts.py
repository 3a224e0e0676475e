"""Every script finds what it imports: nothing that it needs was renamed or deleted under it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted({path.parent for path in (ROOT / "simulations").rglob("*.py")})
#: Peers to compare with, installed by who runs the comparison.
PEERS = {"jax", "jax_privacy", "fedjax", "optax", "pfl", "dp_accounting", "flax", "haiku", "tensorflow"}


def imported(path: Path) -> Iterator[tuple[str, str | None]]:
    """Module and name of every import of a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def own(module: str) -> tuple[Path, ...]:
    """Files of that name under simulations/ and tests/: scripts put the folder that they need on the path."""
    tail = Path(*module.split("."))
    files = [path for folder in ("simulations", "tests") for path in (ROOT / folder).rglob(f"{tail.name}*")]
    wanted = (str(tail) + ".py", str(tail))
    return tuple(path for path in files if str(path.relative_to(ROOT)).endswith(wanted))


@cache
def defined(file: Path) -> frozenset[str]:
    """Names that a module or package has at any depth."""
    if file.is_dir():
        inside = frozenset(path.stem for path in file.iterdir())
        face = file / "__init__.py"
        return inside | defined(face) if face.is_file() else inside
    return frozenset(name for node in ast.walk(ast.parse(file.read_text())) for name in _names(node))


def missing(module: str, name: str | None) -> bool:
    """Whether an import would fail."""
    first = module.split(".")[0]
    if first in PEERS:
        return False
    if first == "fedmf":
        if importlib.util.find_spec(module) is None:
            return True
        known = name is None or hasattr(importlib.import_module(module), name)
        return not known and importlib.util.find_spec(f"{module}.{name}") is None
    if files := own(module):
        return name is not None and not any(name in defined(file) for file in files)
    return importlib.util.find_spec(first) is None


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_scripts_find_what_they_import(folder: Path) -> None:
    lost = [
        f"{path.name}: {module}" + (f".{name}" if name else "")
        for path in sorted(folder.glob("*.py"))
        for module, name in imported(path)
        if missing(module, name)
    ]
    assert lost == []
