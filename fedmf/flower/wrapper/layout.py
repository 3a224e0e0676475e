"""The arrays of a Flower app's model as one flat vector, and what a reply must look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedmf.flower.boundary import checked_array
from fedmf.runs import ModelLayout, check_type


class ArrayLayout(ModelLayout):
    """`ModelLayout` of Flower's records."""

    @classmethod
    def of(
        cls,
        arrays: ArrayRecord,
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """That of a record: see `ModelLayout.of_arrays`."""
        for name, array in arrays.items():
            check_type(name, array.dtype)  # before it is decoded
        return cls.of_arrays({name: array.numpy() for name, array in arrays.items()}, frozen, tied)

    def flat(self, arrays: Mapping[str, Array], number: Any = np.float64) -> Tensor:
        """See `ModelLayout.flat_of`."""
        return self.flat_of({name: arrays[name].numpy() for name, _, _ in self.trained}, number)

    def record(self, flat: Tensor) -> ArrayRecord:
        """A model's arrays, all of them, each of its own type."""
        return ArrayRecord({name: Array(array) for name, array in self.arrays(flat).items()})

    def trained_record(self, flat: Tensor) -> ArrayRecord:
        """The trained arrays alone."""
        return ArrayRecord({name: Array(array) for name, array in self.trained_arrays(flat).items()})

    def read(self, arrays: Mapping[str, Array]) -> Tensor:
        """The trained numbers of a reply, of type `number`; types, shapes and sizes are checked before any
        decoding.

        Raises:
            ValueError: an array is missing, or of another type, shape or size.
        """
        read = dict[str, NDArray[Any]]()
        for name, shape, dtype in self.trained:
            if name not in arrays:
                raise ValueError(f"reply has no array {name[:100]!r}")
            read[name] = checked_array(arrays[name], name, (dtype,), shape)
        return self.flat_of(read, self.number)

    @property
    def most_bytes(self) -> int:
        """Of a reply that holds the model a few times, metrics and whatever else clients send."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return 2**26 + 8 * sum(int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for s, d in sizes)
