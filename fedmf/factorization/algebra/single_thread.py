"""One BLAS thread for the optimisers: NumPy and SciPy bring a thread pool each, and the two fight over cores.

A triangular solve between two matrix products of a 120×120 problem takes 12 ms with the default pools on two
cores and 0.15 ms with one thread, because the idle pool keeps spinning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

#: What BLAS libraries read when they are loaded.
THREAD_LIMITS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def single_threaded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, run with all BLAS libraries limited to one thread."""

    @wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        from threadpoolctl import threadpool_limits

        if not _limited_when_loaded():
            import scipy.linalg  # noqa: F401  its BLAS must be loaded before it can be limited

        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


def _limited_when_loaded() -> bool:
    """Whether a BLAS that is loaded from now on has one thread."""
    first, *others = (os.environ.get(name) for name in THREAD_LIMITS)
    return first == "1" and all(limit in (None, "1") for limit in others)
