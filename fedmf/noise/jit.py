"""Compilation of loops over arrays by numba, with machine code in a cache on disk.

The rooms of noise, clipping and training compile their loops by these decorators, so that float
operations are relaxed nowhere else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, update_wrapper, wraps
from threading import Lock
from types import FunctionType
from typing import Any, Final

_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class Inner:
    """A function that `compiled` functions of the same file call, as a part of each.

    numba takes its `_numba_type_`, a function without the wrapper by which Python calls functions:
    a wrapper takes as long to compile as a short function. A call from Python compiles the function
    again, with its wrapper.

    Attributes:
        py_func: the function in Python.
        targetoptions: options of numba, which looks here for those of inlining.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.targetoptions = {**_OPTIONS, **options}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function from Python, as tests do."""
        return self._outer(*arguments)

    @property
    def _numba_type_(self) -> Any:
        return self._inner._numba_type_

    @cached_property
    def _inner(self) -> Any:
        return _jit(no_cpython_wrapper=True, **self.targetoptions)(self.py_func)

    @cached_property
    def _outer(self) -> Any:
        return _jit(**self.targetoptions)(self.py_func)


def _jit(*arguments: Any, **options: Any) -> Any:
    """Return numba's decorator; numba takes a quarter of a second to import."""
    from numba import njit

    return njit(*arguments, **options)


jit_inline: Final[Any] = Inner
"""Compile a function that only `compiled` functions of the same file call, as a part of each."""

jit_contract: Final[Any] = partial(Inner, fastmath={"contract"})
"""`jit_inline` where a product and a sum may be rounded once; bits then differ by processor."""

jit_reassoc: Final[Any] = partial(Inner, fastmath={"reassoc"})
"""`jit_inline` where sums may be in any order; nothing else is relaxed, in particular not NaN."""

jit_sums: Final[Any] = partial(Inner, fastmath={"contract", "reassoc"})
"""`jit_contract` with sums in any order."""

jit_merged: Final[Any] = partial(Inner, inline="always", fastmath={"contract"})
"""`jit_contract` for a function with one caller, which must have the same options.

Its statements become the caller's: else whatever it calls is optimized once more for it.
"""


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pause the garbage collector, which takes a fifth of the time of compiling."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
        with self._lock, _no_collector():
            if self._program is not None:
                return
            types = [each() if callable(each) else each for each in self._signatures]
            try:
                self._program = _jit(types, cache=True, **self._options)(self.py_func)
            except Exception:
                # The cache cannot be written or is damaged; or the function has a fault, raised
                # again.
                self._program = _jit(types, **self._options)(self.py_func)


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
        signatures: strings such as ``"void(float64[::1], int64)"``, or functions that return
            numba's types.
        fastmath: rules of float operations that are relaxed, such as "contract"; none by default.
    """
    return lambda function: Compiled(function, signatures, fastmath)


def compiled_for(dtypes: Sequence[str], signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for the type of its first argument, on the first call with that type.

    Args:
        dtypes: names of the types that this argument, an array, may have.
        signature: as for `compiled`, with ``{0}`` in place of the name.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        programs = dict[str, Compiled]()
        for dtype in dtypes:
            named = FunctionType(function.__code__, function.__globals__)
            named.__qualname__ = f"{function.__qualname__}_{dtype}"  # names the cached files
            programs[dtype] = Compiled(named, [signature.format(dtype)], ())

        @wraps(function)
        def call(array: Any, *others: Any) -> Any:
            return programs[array.dtype.name](array, *others)

        return call

    return decorate
