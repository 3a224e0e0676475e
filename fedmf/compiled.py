"""Compiled functions over arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for this processor, free of the interpreter lock; keep the machine code where possible."""
    from numba import njit

    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write to
        return njit(**options)(function)
