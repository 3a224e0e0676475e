"""Modules that import their public names on first use.

The face of a room lists its imports under ``if TYPE_CHECKING:``, where type checkers see them;
`lazily` reads them from its source, so that importing the face loads nothing.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

_IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
_COMMENT = re.compile(r"  # .*")


def lazily(face: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that loads its names on first use.

    Args:
        face: the ``__name__`` of the module; its imports stand under ``if TYPE_CHECKING:``,
            absolute and unrenamed. What it imports from itself are its packages.
    """

    def attribute(name: str) -> Any:
        modules = _imports(face)
        if name.startswith("__") or name not in modules:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        if modules[name] == face:
            return importlib.import_module(f"{face}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return attribute


def public_names(face: str) -> list[str]:
    """The names that a face imports, and its version: those that a person can complete."""
    return sorted([*_imports(face), "__version__"])


@cache
def _imports(face: str) -> dict[str, str]:
    """The module of each name that a face imports."""
    spec = importlib.import_module(face).__spec__
    source: str | None = None
    if spec is not None and spec.loader is not None:
        source = spec.loader.get_source(face)  # type: ignore[attr-defined]
    modules = dict[str, str]()
    for module, names in _IMPORT.findall(_COMMENT.sub("", source or "")):
        for name in re.findall(r"\w+", names):
            modules[name] = module
    return modules
