"""What a model's arrays may be without saying so: statistics of layers, one array under two names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError

FLOATS: Final = ("float16", "float32", "float64")
EXACT: Final = (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "bool")


#: Names under which torch's normalisation layers keep statistics of the data they saw.
_STATISTICS: Final = re.compile(r"(^|\.)running_(mean|var)$")


def check_type(name: str, dtype: str) -> None:
    """Refuse an array that is neither trained nor kept.

    Raises:
        ConfigError: another type than floats up to 64 bits, whole numbers and truth values.
    """
    if dtype not in (*FLOATS, *EXACT):
        raise ConfigError(
            f"array {name!r} must be of a floating type up to 64 bits or whole numbers; got {dtype}."
        )


def refuse_statistics(arrays: Mapping[str, NDArray[Any]], frozen: Sequence[str]) -> None:
    """Refuse statistics of normalisation layers that are not frozen.

    Raises:
        ConfigError: there are such, by their names or in a list of arrays without names.
    """
    for name in arrays:
        if _STATISTICS.search(name) and name not in frozen:
            raise ConfigError(
                f"array {name!r} holds statistics of a normalisation layer, which mix users' examples "
                "and are no gradient: use GroupNorm or LayerNorm, or name it in frozen."
            )
    unnamed = _unnamed_statistics(arrays, frozen)
    if unnamed:
        raise ConfigError(
            f"arrays {', '.join(map(repr, unnamed))} look like statistics of a normalisation layer in a "
            "list, which mix users' examples and are no gradient: use GroupNorm or LayerNorm, or name "
            "them in frozen."
        )


def _unnamed_statistics(arrays: Mapping[str, NDArray[Any]], frozen: Sequence[str]) -> list[str]:
    """Arrays that only their shapes and first values show to be running means and variances.

    Where arrays come as a list they have numbers for names. Torch's layers keep weight, bias, mean, variance
    and a whole number, the count of batches; Keras' keep gamma, beta, mean and variance, which begin as ones,
    zeros, zeros, ones.
    """
    rows = [(name, array) for name, array in arrays.items() if name.isdecimal()]
    found = list[str]()
    for place in range(2, len(rows)):
        (mean, a), (variance, b) = rows[place - 1 : place + 1]
        if a.ndim != 1 or a.shape != b.shape or a.dtype.name not in FLOATS:
            continue
        following = rows[place + 1][1] if place + 1 < len(rows) else None
        counted = following is not None and not following.shape and following.dtype.name in EXACT
        four = [array for _, array in rows[max(0, place - 3) : place + 1]]
        fresh = len(four) == 4 and all(array.shape == a.shape for array in four)
        fresh = fresh and [_constant(array) for array in four] == [1.0, 0.0, 0.0, 1.0]
        if counted or fresh:
            found += [name for name in (mean, variance) if name not in frozen]
    return found


def _constant(values: NDArray[Any]) -> float | None:
    """The one number that all entries are; None if they differ."""
    return float(values.flat[0]) if values.size and bool((values == values.flat[0]).all()) else None


def ask_about_ties(arrays: Mapping[str, NDArray[Any]], stays: Sequence[str]) -> None:
    """Refuse equal arrays that are not constant: whether they are one, only who made the model knows.

    Raises:
        ConfigError: there are such.
    """
    first = dict[bytes, str]()
    for name, array in arrays.items():
        if name in stays or _constant(array) is not None:
            continue
        other = first.setdefault(hashlib.sha256(np.ascontiguousarray(array).data).digest(), name)
        if other != name and np.array_equal(array, arrays[other]):
            raise ConfigError(
                f"arrays {other!r} and {name!r} hold the same numbers: are they one array, tied? Say "
                f"tied=[({other!r}, {name!r})] if so, and tied=[] if they are two."
            )


def ties(
    arrays: Mapping[str, NDArray[Any]], stays: Sequence[str], tied: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Of each further name of an array, the first.

    Raises:
        ConfigError: names that are not there, stay, stand twice, or whose arrays are not equal.
    """
    others = dict[str, str]()
    for group in tied:
        if isinstance(group, str) or len(group) < 2:
            raise ConfigError(f"tied must be groups of two or more names of arrays; got {group!r}.")
        first, *rest = sorted(group, key=lambda name: list(arrays).index(name) if name in arrays else -1)
        for name in (first, *rest):
            if name not in arrays or name in stays or name in others or name in others.values():
                raise ConfigError(
                    f"tied must name arrays of the model that are trained, each once; got {name!r}."
                )
        for name in rest:
            if not np.array_equal(arrays[name], arrays[first]):
                raise ConfigError(f"tied arrays must be equal; {first!r} and {name!r} differ.")
        others |= dict.fromkeys(rest, first)
    return others
