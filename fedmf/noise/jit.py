"""Loops over arrays, compiled by numba, and machine code that is kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import njit

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}

jit_inline: Final[Any] = njit(**_OPTIONS)
"""Compile a function that only `compiled` ones of the same file call: it becomes a part of each of
them.
"""

jit_contract: Final[Any] = njit(fastmath={"contract"}, **_OPTIONS)
"""The same where a product and a sum may be rounded once, as some processors do: other bits
elsewhere.
"""

jit_reassoc: Final[Any] = njit(fastmath={"reassoc"}, **_OPTIONS)
"""The same for sums that may be made in any order; nothing else is relaxed, least of all about NaN.
"""


def compiled(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for these types of arguments as it is defined; no argument of another type
    is taken.

    Machine code is kept in ``__pycache__``, else in the user's cache directory, or where
    NUMBA_CACHE_DIR says; where nothing can be written, each process compiles. numba numbers the
    kept files of a function in the order in which types are asked for, and mixes them up if
    processes that start together ask in different orders: declared types are always asked for in
    this one. A kept file is made again when the file of its function changes, not when another one
    does: call `jit_inline` functions of the same file.

    Args:
        signatures: numba's types or texts, such as ``"void(float64[::1], int64)"``.
    """

    def compile_now(function: Callable[..., Any]) -> Any:
        try:
            return njit(list(signatures), cache=True, **_OPTIONS)(function)
        except (
            Exception
        ):  # no directory for it, no space there, a damaged file; or a fault of the function
            return njit(list(signatures), **_OPTIONS)(function)

    return compile_now
