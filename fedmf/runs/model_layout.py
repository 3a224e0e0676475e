"""A model as its arrays: the trained ones as one flat vector, and the constant ones.

Runs with users that are trained elsewhere, by a program that brings updates or by clients of a
Flower app, know a model as this. It is kept in the run directory, so that a released model has all
of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.ledger.durable_files import replace_durably

FLOATS: Final = ("float16", "float32", "float64")
EXACT: Final = (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "bool")
#: Names under which torch's normalisation layers keep statistics of the data they saw.
_STATISTICS: Final = re.compile(r"(^|\.)running_(mean|var)$")


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of a model's arrays, in their order.

    Arrays of a floating type are trained, clipped together and noised, unless they are named as
    frozen. Frozen and integer arrays (such as counters of batches) stay as they were at the start;
    what users send for them is not looked at.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        kept: the values of arrays that stay, by name.
        tied: of an array that is another one under a second name, that other one's: it is trained,
            clipped and noised once and handed out under both; what users send under the second is
            not looked at.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    kept: Mapping[str, NDArray[Any]]
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        frozen: Sequence[str] = (),
        tied: bool | None = None,
    ) -> Self:
        """That of a model.

        Args:
            arrays: by name.
            frozen: names of arrays that stay, or patterns of names.
            tied: whether equal arrays are one under several names; None if not told.

        Raises:
            ConfigError: nothing to train, another type, a name that is frozen and not there, arrays
                that may be one under two names, or statistics of normalisation layers that are not
                frozen: they are no gradients, and noise may make them negative.
        """
        stays = _matching(arrays, frozen)
        for name, array in arrays.items():
            check_type(name, array.dtype.name)
        _refuse_statistics(arrays, stays)
        stays |= {name for name, array in arrays.items() if array.dtype.name in EXACT}
        trained = {name: array for name, array in arrays.items() if name not in stays}
        if not trained:
            raise ConfigError(
                "arrays must hold at least one of a floating type that is not frozen; got none."
            )
        ties = {} if tied is False else _equal(trained)
        if ties and tied is None:
            second, first = next(iter(ties.items()))
            raise ConfigError(
                f"arrays {first!r} and {second!r} hold the same numbers: are they one tied array?"
                " Pass tied=True if equal arrays are one, and tied=False if each is an array of"
                " its own."
            )
        for name, array in trained.items():
            with np.errstate(over="ignore"):
                if not np.isfinite(array.astype(np.float32)).all():
                    raise ConfigError(
                        f"arrays must be finite in float32; got {name!r} with NaN, "
                        "infinity or numbers above 3e38."
                    )
        return cls(
            tuple(arrays),
            tuple(array.shape for array in arrays.values()),
            tuple(array.dtype.name for array in arrays.values()),
            {name: arrays[name].copy() for name in arrays if name in stays},
            ties,
        )

    @cached_property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array that is trained, in the order of the flat vector."""
        rows = zip(self.names, self.shapes, self.dtypes, strict=True)
        return [row for row in rows if row[0] not in self.kept and row[0] not in self.tied]

    @property
    def dimension(self) -> int:
        """d, how many numbers are trained."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    @cached_property
    def number(self) -> np.dtype[Any]:
        """In what users' numbers are clipped: float32 where all of the model are, else float64."""
        narrow = all(dtype == "float32" for _, _, dtype in self.trained)
        return np.dtype(np.float32 if narrow else np.float64)

    def flat_of(self, arrays: Mapping[str, NDArray[Any]], number: Any = np.float64) -> Tensor:
        """The trained numbers one array after the other, shape (d,), of this type."""
        parts = [arrays[name].reshape(-1) for name, _, _ in self.trained]
        return torch.from_numpy(np.concatenate(parts, dtype=number, casting="unsafe"))

    def trained_arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """The trained arrays alone, each of its own type."""
        parts = named_parts(flat.detach().cpu(), [(name, shape) for name, shape, _ in self.trained])
        return {name: parts[name].numpy().astype(dtype) for name, _, dtype in self.trained}

    def arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """A model's arrays, all of them, each of its own type."""
        trained = self.trained_arrays(flat)
        return {
            name: (
                self.kept[name].copy() if name in self.kept else trained[self.tied.get(name, name)]
            )
            for name in self.names
        }

    def fingerprint(self) -> str:
        """SHA-256 of names, shapes, types and the arrays that stay."""
        digest = hashlib.sha256(json.dumps(self._described()).encode())
        for array in self.kept.values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _described(self) -> list[Any]:
        """All but the values."""
        return [self.names, self.shapes, self.dtypes, list(self.kept), dict(self.tied)]

    def save(self, path: Path) -> None:
        """As a NumPy archive without pickled objects: what stays, and a description of all."""
        arrays = {f"kept-{place}": array for place, array in enumerate(self.kept.values())}
        described = np.frombuffer(json.dumps(self._described()).encode(), np.uint8)
        content: dict[str, Any] = {"model": described, **arrays}
        replace_durably(path, lambda file: np.savez(file, **content))

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Self:
        """What `save` wrote.

        Raises:
            ConfigError: it cannot be read, or is not what was recorded.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                names, shapes, dtypes, kept, tied = json.loads(archive["model"].tobytes())
                values = {name: archive[f"kept-{place}"] for place, name in enumerate(kept)}
            layout = cls(tuple(names), tuple(map(tuple, shapes)), tuple(dtypes), values, tied)
            same = layout.fingerprint() == fingerprint
        except Exception as error:  # whatever a damaged file may cause
            raise ConfigError(
                f"cannot read {path} (all arrays of the model): {type(error).__name__}."
            ) from None
        if not same:
            raise ConfigError(
                f"{path} (all arrays of the model) must be what the run began with; it is not."
            )
        return layout


def named_copies(
    flat: Tensor, arrays: Sequence[tuple[str, tuple[int, ...]]], tied: Mapping[str, str]
) -> dict[str, Tensor]:
    """Copies of the arrays of a flat vector by name; a tied one is one tensor of several names."""
    tensors: dict[str, Tensor] = {}
    for name, part in named_parts(flat, arrays).items():
        tensors[name] = part.clone()
    for name, first in tied.items():
        tensors[name] = tensors[first]
    return tensors


def named_parts(flat: Tensor, arrays: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    """The arrays of a flat vector by name, views of it."""
    parts = flat.split([math.prod(shape) for _, shape in arrays])
    return {name: part.reshape(shape) for (name, shape), part in zip(arrays, parts, strict=True)}


def check_type(name: str, dtype: str) -> None:
    """Refuse an array that is neither trained nor kept.

    Raises:
        ConfigError: another type than floats up to 64 bits, integers and Booleans.
    """
    if dtype not in (*FLOATS, *EXACT):
        raise ConfigError(
            f"array {name!r} must be of a floating type up to 64 bits or of integers; got {dtype}."
        )


def _matching(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """The names that are given, or match a pattern."""
    chosen = set[str]()
    for pattern in patterns:
        matching = (
            {pattern}
            if pattern in names
            else {name for name in names if fnmatchcase(name, pattern)}
        )
        if not matching:
            raise ConfigError(
                f"frozen must name arrays of the model; got {pattern!r}, which matches none."
            )
        chosen |= matching
    return chosen


def _refuse_statistics(arrays: Mapping[str, NDArray[Any]], frozen: Collection[str]) -> None:
    """Refuse statistics of normalisation layers, known by their names; in a list of arrays without
    names, by a mean and a variance of one shape before a count of batches, or fresh ones after
    scale and shift.
    """
    found = [name for name in arrays if _STATISTICS.search(name)]
    rows = [(name, array) for name, array in arrays.items() if name.isdecimal()]
    for place in range(2, len(rows)):
        four = [array for _, array in rows[max(0, place - 3) : place + 1]]
        (mean, a), (variance, b) = rows[place - 1 : place + 1]
        if a.ndim == 1 and a.shape == b.shape and a.dtype.name in FLOATS:
            following = rows[place + 1][1] if place + 1 < len(rows) else a
            counted = not following.shape and following.dtype.name in EXACT
            fresh = {array.shape for array in four} == {a.shape}
            if counted or (fresh and [_constant(array) for array in four] == [1.0, 0.0, 0.0, 1.0]):
                found += [mean, variance]
    if found := [name for name in found if name not in frozen]:
        some = ", ".join(map(repr, found[:3])) + (
            f", … ({len(found)} in all)" if len(found) > 3 else ""
        )
        raise ConfigError(
            f"arrays {some} hold statistics of a normalisation layer, which mix users' examples and"
            " are not gradients: use GroupNorm or LayerNorm, or name them in frozen."
        )


def _constant(values: NDArray[Any]) -> float | None:
    """The one number that all entries are; None if they differ."""
    return float(values.flat[0]) if values.size and bool((values == values.flat[0]).all()) else None


def _equal(trained: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Of each array that equals an earlier one, and is not constant, the earlier one's name."""
    first = dict[bytes, str]()
    ties = dict[str, str]()
    for name, array in trained.items():
        if _constant(array) is None:
            content = (
                repr((array.dtype, array.shape)).encode() + np.ascontiguousarray(array).tobytes()
            )
            other = first.setdefault(hashlib.sha256(content).digest(), name)
            if other != name:
                ties[name] = other
    return ties
