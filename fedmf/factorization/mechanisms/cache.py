"""Optimised factorizations kept on disk, by content: the same request is computed once per machine.

An entry is found by a hash of the function, its version and its arguments, written to a temporary file and
renamed, so that concurrent runs see a whole entry or none. An entry that cannot be read is computed again and
replaced. Nothing about privacy rests on an entry: sensitivity and error are computed from the coefficients.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from fedmf.factorization.matrices import Factorization, factorization_from_dict

__all__ = ["cache_directory", "remembered"]

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value", bound=Factorization)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
_SHORTEST_ARRAY = 16
_DESCRIPTION = "description"
_DOUBLES = "<f8"


def cache_directory() -> Path | None:
    """Where entries are kept: FEDMF_CACHE, else XDG_CACHE_HOME/fedmf, else ~/.cache/fedmf; None if off.

    Set FEDMF_CACHE=off to keep nothing.
    """
    chosen = os.environ.get("FEDMF_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # no home directory
        return (Path(home) if home else Path.home() / ".cache") / "fedmf"
    return None


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

    @wraps(function)
    def lookup(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
        folder = cache_directory()
        if folder is None:
            return function(*args, **kwargs)
        key = _key(f"{function.__module__}.{function.__qualname__}", version, args, kwargs)
        path = folder / "factorizations" / f"{key}.zip"
        with suppress(*_UNREADABLE):
            return cast(_Value, factorization_from_dict(_read(path, key)))
        value = function(*args, **kwargs)
        with suppress(OSError):
            _write(path, key, value.to_dict())
        return value

    return lookup


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


def _write(path: Path, key: str, description: Mapping[str, Any]) -> None:
    arrays: dict[str, bytes] = {}
    short = json.dumps({"key": key, "value": _without_arrays(description, arrays)})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as entry:  # each part with its own check
        for name, content in {_DESCRIPTION: short.encode(), **arrays}.items():
            entry.writestr(zipfile.ZipInfo(name), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(buffer.getbuffer())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _read(path: Path, key: str) -> dict[str, Any]:
    # Plain parts, not arrays of numpy: those have headers in Python, which 3.11 cannot parse in two threads.
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as entry:
        stored = json.loads(entry.read(_DESCRIPTION).decode())
        if stored["key"] != key:
            raise ValueError(f"an entry must hold its own key; got {stored['key']}.")
        return _with_arrays(stored["value"], entry.read)


def _without_arrays(value: Any, arrays: dict[str, bytes]) -> Any:
    """The description with long lists of floats replaced by references to arrays."""
    if isinstance(value, dict):
        return {key: _without_arrays(part, arrays) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) >= _SHORTEST_ARRAY and all(isinstance(part, float) for part in value):
        name = f"array{len(arrays)}"
        arrays[name] = np.array(value, dtype=_DOUBLES).tobytes()
        return {"array": name}
    return [_without_arrays(part, arrays) for part in value]


def _with_arrays(value: Any, content: Callable[[str], bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"array"}:
            return np.frombuffer(content(value["array"]), dtype=_DOUBLES).tolist()
        return {key: _with_arrays(part, content) for key, part in value.items()}
    return [_with_arrays(part, content) for part in value] if isinstance(value, list) else value
