"""A cache of optimized factorizations and searched parameters, in the process and on disk.

The name of an entry on disk is a hash of the function, its version and its arguments. One that does
not describe a factorization of the right horizon is computed again and replaced. Privacy does not
rest on entries: sensitivity and error are always computed from the coefficients.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from fedmf.accounting.disk_cache import DiskCache, cache_directory
from fedmf.matrices.factorization import Factorization, factorization_from_dict

#: Environment variables that BLAS libraries read when they are loaded.
THREAD_LIMITS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Bytes of an entry and of all entries on disk.
_LARGEST = 2**26
_MOST = 2**30
# Results in the memory of a process for each function.
_RECENT = 32

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Value = TypeVar("_Value", bound=Factorization)


def single_threaded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, run with all BLAS libraries limited to one thread.

    NumPy, SciPy and torch bring a thread pool each, and they fight over cores: a triangular solve
    between two matrix products of a 120×120 problem takes 12 ms with the default pools on two cores
    and 0.15 ms with one thread, because the idle pool keeps spinning.
    """

    @wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        from threadpoolctl import threadpool_limits

        if not _limited_by_environment():
            import scipy.linalg  # noqa: F401  its BLAS must be loaded before it can be limited

        with threadpool_limits(limits=1):
            return function(*args, **kwargs)

    return limited


def _limited_by_environment() -> bool:
    """Whether environment variables limit all BLAS libraries to one thread already."""
    openmp, *others = THREAD_LIMITS
    if os.environ.get(openmp) != "1":
        return False
    return all(os.environ.get(name, "1") == "1" for name in others)


def disk_cached(function: Callable[_P, _Value], version: int) -> Callable[_P, _Value]:
    """The function on one thread, with recent results in memory and all of them on disk.

    Args:
        function: returns a factorization that depends on its arguments alone; these are numbers,
            strings, arrays, frozen dataclasses or sequences of them.
        version: the version of the results, to be raised whenever the function returns other
            coefficients for the same arguments.

    Raises:
        TypeError: when called with an argument that has no content to hash.

    Guarantees:
        A result read from disk has exactly the coefficients that were computed. Calls from several
        processes at once are safe. Without a writable directory every call computes.
    """
    recent: dict[str, _Value] = {}
    compute = single_threaded(function)

    @wraps(function)
    def lookup(*args: _P.args, **kwargs: _P.kwargs) -> _Value:
        name = f"{function.__module__}.{function.__qualname__}"
        key = _key([name, version, args, kwargs])
        if key not in recent:
            files = _files("designs", _LARGEST, _MOST)
            value: Any = _read(files, key, _rounds_of(args))
            if value is None:
                value = compute(*args, **kwargs)
                if files is not None:
                    files.write(key, json.dumps(value.to_dict()).encode())
            while len(recent) >= _RECENT:
                recent.pop(next(iter(recent), ""), None)
            recent[key] = value
        return recent[key]

    return lookup


def cached_parameters(
    searched_for: Sequence[object], search: Callable[[], Mapping[str, float | int]]
) -> Mapping[str, float | int]:
    """The parameters that a search returns, from disk if it ran before.

    Args:
        searched_for: everything that they depend on, as arguments of `disk_cached`, with a version
            of the search.
        search: runs the search.
    """
    key = _key(searched_for)
    files = _files("parameters", 1 << 12, 1 << 24)
    if files is None:
        return search()
    content = files.read(key)
    if content is not None:
        return json.loads(content)
    values = search()
    files.write(key, json.dumps(dict(values)).encode())
    return values


def _files(kind: str, largest: int, most: int) -> DiskCache | None:
    """The cache on disk; None where it is off."""
    root = cache_directory()
    if root is None:
        return None
    return DiskCache(root, kind, largest, most)


def _key(arguments: Sequence[object]) -> str:
    content = json.dumps(_content(arguments), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _rounds_of(args: Sequence[Any]) -> Any:
    """n, from the first argument that has it, or the first argument itself."""
    for argument in args:
        rounds = getattr(argument, "rounds", None)
        if rounds is not None:
            return rounds
    return args[0]


def _read(files: DiskCache | None, key: str, rounds: int) -> Factorization | None:
    """The entry, if it describes a factorization of this horizon."""
    if files is None:
        return None
    with suppress(ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        content = files.read(key)
        if content is not None:
            value = factorization_from_dict(json.loads(content))
            if value.rounds == rounds:
                return value
    return None


def _content(value: object) -> Any:
    """A JSON description that differs whenever the value does."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value).hex()
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return [str(data.dtype), list(data.shape), hashlib.sha256(data.tobytes()).hexdigest()]
    if is_dataclass(value) and not isinstance(value, type):
        attributes = {part.name: getattr(value, part.name) for part in fields(value)}
        return [type(value).__name__, _content(attributes)]
    if isinstance(value, dict):
        return {str(key): _content(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_content(part) for part in value]
    raise TypeError(f"a cached argument must be a value with content; got {type(value).__name__}.")
