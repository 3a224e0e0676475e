"""The arrays of a model as one flat vector: what is trained, what stays, and what a reply must look like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.flower.boundary import checked_array
from fedmf.flower.wrapper.array_checks import EXACT, FLOATS, ask_about_ties, ties, unnamed_statistics
from fedmf.runs import WholeModel

#: Names under which torch's normalisation layers keep statistics of the data they saw.
_STATISTICS: Final = re.compile(r"(^|\.)running_(mean|var)$")


@dataclass(frozen=True, eq=False)
class ArrayLayout:
    """Names, shapes and types of a model's arrays, in their order.

    Arrays of a floating type are trained, clipped together and noised, unless they are named as frozen.
    Frozen arrays and those of whole numbers (such as counters of batches) stay what they were at the start;
    what clients send for them is not looked at.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        frozen: names of arrays that stay.
        kept: the values of those, by name.
        tied: of an array that is another one under a second name, that other one's: it is trained, clipped
            and noised once and handed out under both; what clients send under the second is not looked at.

    Raises:
        ConfigError: nothing to train, another type, a name that is frozen and not there, arrays that may be
            one under two names, or statistics of normalisation layers that are not frozen: they are no
            gradients, and noise may make them negative.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    frozen: tuple[str, ...]
    kept: Mapping[str, NDArray[Any]]
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        arrays: ArrayRecord,
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """That of a record.

        Args:
            arrays: the record.
            frozen: names of arrays that stay, or patterns of names.
            tied: groups of names that are one array each; None where nobody said whether there are any.
        """
        names = tuple(arrays)
        frozen = _matching(names, frozen)
        for name, array in arrays.items():
            if array.dtype not in (*FLOATS, *EXACT):
                raise ConfigError(
                    f"array {name!r} must be of a floating type up to 64 bits or whole numbers; got "
                    f"{array.dtype}."
                )
            if _STATISTICS.search(name) and name not in frozen:
                raise ConfigError(
                    f"array {name!r} holds statistics of a normalisation layer, which mix users' examples "
                    "and are no gradient: use GroupNorm or LayerNorm, or name it in frozen."
                )
        unnamed = unnamed_statistics(arrays, frozen)
        if unnamed:
            raise ConfigError(
                f"arrays {', '.join(map(repr, unnamed))} look like statistics of a normalisation layer in a "
                "list, which mix users' examples and are no gradient: use GroupNorm or LayerNorm, or name "
                "them in frozen."
            )
        stays = [n for n, a in arrays.items() if n in frozen or a.dtype in EXACT]
        if tied is None:
            ask_about_ties(arrays, stays)
        if len(stays) == len(names):
            raise ConfigError(
                "arrays must hold at least one of a floating type that is not frozen; got none."
            )
        return cls(
            names,
            tuple(tuple(int(size) for size in array.shape) for array in arrays.values()),
            tuple(array.dtype for array in arrays.values()),
            frozen,
            {name: arrays[name].numpy() for name in stays},
            ties(arrays, stays, tied or ()),
        )

    @property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array that is trained."""
        rows = zip(self.names, self.shapes, self.dtypes, strict=True)
        return [row for row in rows if row[0] not in self.kept and row[0] not in self.tied]

    @property
    def trained_shapes(self) -> list[tuple[int, ...]]:
        """Of those, in the order of the flat vector."""
        return [shape for _, shape, _ in self.trained]

    @property
    def dimension(self) -> int:
        """d, how many numbers are trained."""
        return sum(int(np.prod(shape, dtype=np.int64)) for _, shape, _ in self.trained)

    def flat(self, arrays: Mapping[str, Array]) -> Tensor:
        """The trained numbers one array after the other, float64, shape (d,)."""
        parts = [arrays[name].numpy().astype(np.float64).reshape(-1) for name, _, _ in self.trained]
        return torch.from_numpy(np.concatenate(parts))

    def record(self, flat: Tensor) -> ArrayRecord:
        """A model's arrays, all of them, each of its own type."""
        trained = self.trained_record(flat)
        return ArrayRecord(
            {
                name: Array(self.kept[name]) if name in self.kept else trained[self.tied.get(name, name)]
                for name in self.names
            }
        )

    def trained_record(self, flat: Tensor) -> ArrayRecord:
        """The trained arrays alone."""
        values, made, start = flat.detach().cpu().numpy(), dict[str, Array](), 0
        for name, shape, dtype in self.trained:
            length = int(np.prod(shape, dtype=np.int64))
            made[name] = Array(values[start : start + length].reshape(shape).astype(dtype))
            start += length
        return ArrayRecord(made)

    def read(self, arrays: Mapping[str, Array]) -> Tensor:
        """The trained numbers of a reply, as `flat`; types, shapes and sizes are checked before any decoding.

        Raises:
            ValueError: an array is missing, or of another type, shape or size.
        """
        parts = list[NDArray[np.float64]]()
        for name, shape, dtype in self.trained:
            if name not in arrays:
                raise ValueError(f"reply has no array {name[:100]!r}")
            parts.append(checked_array(arrays[name], name, (dtype,), shape).astype(np.float64).reshape(-1))
        return torch.from_numpy(np.concatenate(parts))

    @property
    def most_bytes(self) -> int:
        """Of a reply that holds the model a few times, metrics and whatever else clients send."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return 2**26 + 8 * sum(int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for s, d in sizes)

    @property
    def whole(self) -> WholeModel:
        """What a run keeps of it."""
        return WholeModel(self.names, self.shapes, self.dtypes, self.kept, self.tied)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The names that are given, or match a pattern, in the model's order."""
    chosen = set[str]()
    for pattern in patterns:
        matching = {pattern} if pattern in names else {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise ConfigError(f"frozen must name arrays of the model; got {pattern!r}, which matches none.")
        chosen |= matching
    return tuple(name for name in names if name in chosen)
