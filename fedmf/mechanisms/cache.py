"""Optimised factorizations kept on disk, by content: the same request is computed once per machine.

An entry is found by a hash of the function, its version and its arguments. One that is damaged, or that does
not describe a factorization of the kind and horizon asked for, is computed again and replaced. Nothing about
privacy rests on an entry: sensitivity and error are computed from the coefficients.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

import numpy as np

from fedmf.kept_files import KeptFiles, cache_directory
from fedmf.mechanisms.matrix import Factorization, factorization_from_dict
from fedmf.mechanisms.toeplitz import ScaledToeplitz

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value", bound=Factorization)
_SHORTEST_ARRAY = 16
_DOUBLES = "<f8"
#: Bytes of an entry, of its description without long lists, and of all. The largest triangle is 17 MB.
_LARGEST, _LONGEST_DESCRIPTION, _MOST = 2**26, 2**24, 2**30


def remembered(function: Callable[_Arguments, _Value], version: int) -> Callable[_Arguments, _Value]:
    """The function, with its results kept on disk.

    Args:
        function: returns a factorization that depends on its arguments alone; these are numbers, strings,
            arrays, frozen dataclasses or sequences of them.
        version: to be raised whenever the function finds other coefficients for the same arguments.

    Raises:
        TypeError: when called with an argument that has no content to hash.

    Guarantees:
        A result read from disk has exactly the coefficients that were computed. Calls from several processes
        at once are safe. Without a writable directory every call computes.
    """

    signature = inspect.signature(function)

    @wraps(function)
    def lookup(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
        root = cache_directory()
        if root is None:
            return function(*args, **kwargs)
        files = KeptFiles(root, "designs", _LARGEST, _MOST)
        key = _key(f"{function.__module__}.{function.__qualname__}", version, args, kwargs)
        rounds = _horizon(signature.bind(*args, **kwargs).arguments)
        content = files.read(key)
        if content is not None:
            with suppress(ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
                return _decoded(content, get_type_hints(function)["return"], rounds)
        value = function(*args, **kwargs)
        files.write(key, _encoded(value.to_dict()))
        return value

    return lookup


def _horizon(arguments: Mapping[str, Any]) -> int:
    """n of the factorization that is asked for: its own argument, or that of what it is made for."""
    if "rounds" in arguments:
        return arguments["rounds"]
    return next(value.rounds for value in arguments.values() if hasattr(value, "rounds"))


def _key(name: str, version: int, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    content = json.dumps([name, version, _content(args), _content(dict(kwargs))], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _content(value: object) -> Any:
    """A JSON description that differs whenever the value does."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value).hex()
    if isinstance(value, np.integer):
        return int(value)
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
    raise TypeError(f"a remembered argument must be a value with content; got {type(value).__name__}.")


def _encoded(description: Mapping[str, Any]) -> bytes:
    """A line of JSON, then the numbers of its long lists in their order."""
    lists: list[bytes] = []
    short = json.dumps(_without_lists(description, lists)).encode()
    return b"\n".join((short, b"".join(lists)))


def _without_lists(value: Any, lists: list[bytes]) -> Any:
    """The description with long lists of floats replaced by their lengths."""
    if isinstance(value, dict):
        return {key: _without_lists(part, lists) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) >= _SHORTEST_ARRAY and all(isinstance(part, float) for part in value):
        lists.append(np.array(value, dtype=_DOUBLES).tobytes())
        return {"floats": len(value)}
    return [_without_lists(part, lists) for part in value]


def _decoded(content: bytes, kind: type[_Value], rounds: int) -> _Value:
    """What an entry describes.

    Raises:
        ValueError: it is no factorization of this kind and length, or its numbers are out of range.
        KeyError, TypeError, ArithmeticError, RecursionError: the same.
    """
    short, separator, numbers = content.partition(b"\n")
    if not separator or len(short) > _LONGEST_DESCRIPTION:
        raise ValueError("an entry must begin with a line of JSON.")
    floats = np.frombuffer(numbers, dtype=_DOUBLES)
    description, used = _with_lists(json.loads(short.decode()), floats, 0, rounds)
    if used != floats.size:
        raise ValueError(f"an entry must hold the {used} numbers of its lists; got {floats.size}.")
    value = factorization_from_dict(description)
    if not isinstance(value, kind) or value.rounds != rounds:
        raise ValueError(f"an entry must be {kind.__name__} of {rounds} rounds; got {type(value).__name__}.")
    if isinstance(value, ScaledToeplitz):  # C and C⁻¹ are finite: else the first use would say so
        _ = value.strategy, value.correlation
    return value


def _with_lists(value: Any, floats: Any, used: int, rounds: int) -> tuple[Any, int]:
    """The description with its lists, each number used once; and how many are used then."""
    if isinstance(value, dict):
        if value.keys() == {"floats"}:
            end = used + value["floats"]
            if not used < end <= min(floats.size, used + rounds) or not np.isfinite(floats[used:end]).all():
                raise ValueError(f"a list must have at most {rounds} finite numbers; got {value}.")
            return floats[used:end].tolist(), end
        if not 1 <= value.get("rounds", 1) <= rounds:
            raise ValueError(f"n (rounds) must be at most {rounds}; got {value['rounds']}.")
        found: dict[str, Any] = {}
        for key, part in value.items():
            found[key], used = _with_lists(part, floats, used, rounds)
        return found, used
    if not isinstance(value, list):
        return value, used
    if len(value) > rounds:
        raise ValueError(f"a list must have at most {rounds} parts; got {len(value)}.")
    parts: list[Any] = []
    for part in value:
        read, used = _with_lists(part, floats, used, rounds)
        parts.append(read)
    return parts, used
