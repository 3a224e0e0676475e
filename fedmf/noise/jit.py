"""Compilation of loops over arrays by numba, with machine code in a cache on disk.

The rooms of noise, clipping and training compile their loops by these decorators, so that float
operations are relaxed nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import update_wrapper
from threading import Lock
from typing import Any, Final

from numba import njit

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}

jit_inline: Final[Any] = njit(**_OPTIONS)
"""Compile a function that only `compiled` functions of the same file call, as a part of each."""

jit_contract: Final[Any] = njit(fastmath={"contract"}, **_OPTIONS)
"""`jit_inline` where a product and a sum may be rounded once; bits then differ by processor."""

jit_reassoc: Final[Any] = njit(fastmath={"reassoc"}, **_OPTIONS)
"""`jit_inline` where sums may be in any order; nothing else is relaxed, in particular not NaN."""

jit_sums: Final[Any] = njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
"""`jit_contract` with sums in any order."""

jit_merged: Final[Any] = njit(inline="always", fastmath={"contract"}, **_OPTIONS)
"""`jit_contract` for a function with one caller, which must have the same options.

Its statements become the caller's: else whatever it calls is optimized once more for it.
"""


class Compiled:
    """A function that is compiled, or loaded from the cache, when it is first called.

    Importing a module thus costs nothing for functions that a program does not call.

    Attributes:
        py_func: the function in Python.
    """

    def __init__(self, function: Any, signatures: Sequence[Any], fastmath: Collection[str]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._signatures = list(signatures)
        self._options = {**_OPTIONS, "fastmath": set(fastmath)}
        self._program: Callable[..., Any] | None = None
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code."""
        if self._program is None:
            self.compile()
        assert self._program is not None
        return self._program(*arguments)

    @property
    def is_ready(self) -> bool:
        """Return whether the machine code is there."""
        return self._program is not None

    def compile(self) -> None:
        """Compile the function for its types, or load it from the cache, unless that is done."""
        with self._lock:
            if self._program is not None:
                return
            try:
                self._program = njit(self._signatures, cache=True, **self._options)(self.py_func)
            except Exception:
                # The cache cannot be written or is damaged; or the function has a fault, raised
                # again.
                self._program = njit(self._signatures, **self._options)(self.py_func)


def compiled(
    *signatures: Any, fastmath: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Compiled]:
    """Compile a function for these types of arguments on its first call, and for no others.

    Machine code is cached in ``__pycache__``, else in the user's cache directory, or where
    NUMBA_CACHE_DIR says; where nothing can be written, each process compiles. numba numbers the
    cached files of a function in the order in which types are requested, and mixes them up if
    processes that start together request them in different orders. Declared types are always
    requested in the order of their declaration. A cached file is written again when the file of its
    function changes, not when another one does: call `jit_inline` functions of the same file.

    Args:
        signatures: numba's types or strings, such as ``"void(float64[::1], int64)"``.
        fastmath: rules of float operations that are relaxed, such as "contract"; none by default.
    """
    return lambda function: Compiled(function, signatures, fastmath)
