"""The arrays of a model as one flat vector: what is trained, and what stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.runs.elsewhere.array_checks import EXACT, ask_about_ties, check_type, refuse_statistics, ties
from fedmf.runs.released_model import WholeModel


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of a model's arrays, in their order.

    Arrays of a floating type are trained, clipped together and noised, unless they are named as frozen.
    Frozen arrays and those of whole numbers (such as counters of batches) stay what they were at the start;
    what users send for them is not looked at.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        frozen: names of arrays that stay.
        kept: the values of those, by name.
        tied: of an array that is another one under a second name, that other one's: it is trained, clipped
            and noised once and handed out under both; what users send under the second is not looked at.

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
    def of_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """That of a model.

        Args:
            arrays: by name.
            frozen: names of arrays that stay, or patterns of names.
            tied: groups of names that are one array each; None where nobody said whether there are any.
        """
        names = tuple(arrays)
        frozen = _matching(names, frozen)
        for name, array in arrays.items():
            check_type(name, array.dtype.name)
        refuse_statistics(arrays, frozen)
        stays = [name for name, array in arrays.items() if name in frozen or array.dtype.name in EXACT]
        if tied is None:
            ask_about_ties(arrays, stays)
        if len(stays) == len(names):
            raise ConfigError(
                "arrays must hold at least one of a floating type that is not frozen; got none."
            )
        for name in set(names) - set(stays):
            with np.errstate(over="ignore"):
                if not np.isfinite(arrays[name].astype(np.float32)).all():
                    raise ConfigError(
                        f"arrays must be finite in float32, in which models are kept; got {name!r} with NaN, "
                        "infinity or numbers above 3e38."
                    )
        return cls(
            names,
            tuple(array.shape for array in arrays.values()),
            tuple(array.dtype.name for array in arrays.values()),
            frozen,
            {name: arrays[name].copy() for name in stays},
            ties(arrays, stays, tied or ()),
        )

    @cached_property
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
        values, made, start = flat.detach().cpu().numpy(), dict[str, NDArray[Any]](), 0
        for name, shape, dtype in self.trained:
            length = int(np.prod(shape, dtype=np.int64))
            made[name] = values[start : start + length].reshape(shape).astype(dtype)
            start += length
        return made

    def arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """A model's arrays, all of them, each of its own type."""
        trained = self.trained_arrays(flat)
        return {
            name: self.kept[name].copy() if name in self.kept else trained[self.tied.get(name, name)]
            for name in self.names
        }

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
