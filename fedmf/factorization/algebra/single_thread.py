"""One BLAS thread for the optimisers: NumPy and SciPy bring a thread pool each, and the two fight over cores.

A triangular solve between two matrix products of a 120×120 problem takes 12 ms with the default pools on two
cores and 0.15 ms with one thread, because the idle pool keeps spinning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["single_threaded"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def single_threaded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, run with all BLAS libraries limited to one thread."""

    @wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        import scipy.linalg  # noqa: F401  its BLAS must be loaded before it can be limited
        from threadpoolctl import threadpool_limits

        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
