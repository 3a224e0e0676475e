"""Faces that import what they name only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(face: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a face.

    Args:
        face: its ``__name__``.
        modules: the module that defines each name.
    """

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return attribute
