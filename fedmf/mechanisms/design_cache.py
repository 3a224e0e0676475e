"""Optimised factorizations, computed on one thread and kept: in the process, and on disk by
content.

An entry on disk is found by a hash of the function, its version and its arguments. One that does
not describe a factorization of the horizon asked for is computed again and replaced. Nothing about
privacy rests on an entry: sensitivity and error are computed from the coefficients.
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

#: What BLAS libraries read when they are loaded.
THREAD_LIMITS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Bytes of an entry and of all; how many results a process keeps for each function.
_LARGEST = 2**26
_MOST = 2**30
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

        first, *others = (os.environ.get(name) for name in THREAD_LIMITS)
        if first != "1" or any(limit not in (None, "1") for limit in others):
            import scipy.linalg  # noqa: F401  its BLAS must be loaded before it can be limited

        with threadpool_limits(limits=1):
            return function(*args, **kwargs)

    return limited


def remembered(function: Callable[_P, _Value], version: int) -> Callable[_P, _Value]:
    """The function on one thread, with its last results kept in memory and all of them on disk.

    Args:
        function: returns a factorization that depends on its arguments alone; these are numbers,
            strings, arrays, frozen dataclasses or sequences of them.
        version: to be raised whenever the function finds other coefficients for the same arguments.

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
        content = json.dumps([name, version, _content(args), _content(kwargs)], sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()
        if key not in recent:
            root = cache_directory()
            files = None if root is None else DiskCache(root, "designs", _LARGEST, _MOST)
            rounds: Any = next(
                (n for part in args if (n := getattr(part, "rounds", None)) is not None), args[0]
            )
            if (value := None if files is None else _read(files, key, rounds)) is None:
                value = compute(*args, **kwargs)
                if files is not None:
                    files.write(key, json.dumps(value.to_dict()).encode())
            while len(recent) >= _RECENT:
                recent.pop(next(iter(recent), ""), None)
            recent[key] = value  # type: ignore[assignment]
        return recent[key]

    return lookup


def remembered_parameters(
    searched_for: Sequence[object], search: Callable[[], Mapping[str, float | int]]
) -> Mapping[str, float | int]:
    """The parameters that a search finds, from disk if it was made before.

    Args:
        searched_for: all that they depend on, as `remembered` takes arguments, with a version of
            the search.
        search: finds them.
    """
    key = hashlib.sha256(json.dumps(_content(searched_for), sort_keys=True).encode()).hexdigest()
    root = cache_directory()
    files = None if root is None else DiskCache(root, "parameters", 1 << 12, 1 << 24)
    if files is not None and (kept := files.read(key)) is not None:
        return json.loads(kept)
    found = search()
    if files is not None:
        files.write(key, json.dumps(dict(found)).encode())
    return found


def _read(files: DiskCache, key: str, rounds: int) -> Factorization | None:
    """The entry, if it describes a factorization of this horizon."""
    with suppress(ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        content = files.read(key)
        value = None if content is None else factorization_from_dict(json.loads(content))
        return value if value is not None and value.rounds == rounds else None
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
        return [
            type(value).__name__,
            {part.name: _content(getattr(value, part.name)) for part in fields(value)},
        ]
    if isinstance(value, dict):
        return {str(key): _content(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_content(part) for part in value]
    raise TypeError(
        f"a remembered argument must be a value with content; got {type(value).__name__}."
    )
