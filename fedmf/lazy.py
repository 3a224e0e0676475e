"""Faces that import what they name only when it is asked for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

_IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)


def lazily(face: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a face: what it imports for type checkers alone is loaded at first
    use.

    Args:
        face: its ``__name__``; such imports stand in it under ``if TYPE_CHECKING:``, absolute and
            unrenamed.
    """

    @cache
    def modules() -> dict[str, str]:
        spec = importlib.import_module(face).__spec__
        source = "" if spec is None or spec.loader is None else spec.loader.get_source(face)  # type: ignore[attr-defined]
        found = _IMPORT.findall(source or "")
        return {name: module for module, names in found for name in re.findall(r"\w+", names)}

    def attribute(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules()[name]), name)

    return attribute
