"""Compilation of loops over arrays by numba, with machine code in a cache on disk.

The rooms of noise, clipping and training compile their loops by these decorators, so that float
operations are relaxed nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import njit

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}

jit_inline: Final[Any] = njit(**_OPTIONS)
"""Compile a function that only `compiled` functions of the same file call, as a part of each."""

jit_contract: Final[Any] = njit(fastmath={"contract"}, **_OPTIONS)
"""`jit_inline` where a product and a sum may be rounded once; bits then differ by processor."""

jit_reassoc: Final[Any] = njit(fastmath={"reassoc"}, **_OPTIONS)
"""`jit_inline` where sums may be in any order; nothing else is relaxed, in particular not NaN."""


def compiled(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for these types of arguments when it is defined, and for no others.

    Machine code is cached in ``__pycache__``, else in the user's cache directory, or where
    NUMBA_CACHE_DIR says; where nothing can be written, each process compiles. numba numbers the
    cached files of a function in the order in which types are requested, and mixes them up if
    processes that start together request them in different orders. Declared types are always
    requested in the order of their declaration. A cached file is written again when the file of its
    function changes, not when another one does: call `jit_inline` functions of the same file.

    Args:
        signatures: numba's types or strings, such as ``"void(float64[::1], int64)"``.
    """

    def compile_now(function: Callable[..., Any]) -> Any:
        try:
            return njit(list(signatures), cache=True, **_OPTIONS)(function)
        except Exception:
            # The cache cannot be written or is damaged; or the function has a fault, raised again.
            return njit(list(signatures), **_OPTIONS)(function)

    return compile_now
