"""The arrays of a Flower app's model as one flat vector, and what a reply must look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from fedmf.flower.messages import checked_array, shown
from fedmf.runs.model_layout import ModelLayout, check_type

#: Which PyTorch puts before all names of a module that it wraps (DataParallel, compile).
_PREFIXES: Final = ("module.", "_orig_mod.")


class ArrayLayout(ModelLayout):
    """`ModelLayout` of Flower's records, and what a reply must look like."""

    @classmethod
    def of(cls, arrays: ArrayRecord, frozen: Sequence[str] = (), tied: bool | None = None) -> Self:
        """The layout of a record: see `ModelLayout.of_arrays`."""
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
        return ArrayRecord(
            {name: Array(array) for name, array in self.trained_arrays(flat).items()}
        )

    def read(self, message: Message) -> Tensor:
        """The trained numbers of a reply, of type `number`; types, shapes and sizes are checked
        before any decoding.

        Arrays of float32 and float64 are converted to the model's type; a number beyond its range
        becomes infinite, so that the user's contribution is zero.

        Raises:
            ValueError: an error of the client, or an array is missing, or of another type, shape or
                size.
        """
        if message.has_error():
            raise ValueError(f"client error {message.error.code}: {shown(message.error.reason)}")
        records = list(message.content.array_records.values())
        if len(records) != 1:
            raise ValueError(
                f"reply must hold one array record; got {len(records)}. Clients must return the"
                " model in one ArrayRecord"
            )
        named = self._named(records[0])
        read = dict[str, NDArray[Any]]()
        for name, shape, dtype in self.trained:
            if name not in named:
                raise ValueError(
                    f"reply has no array {shown(name)}; it has {shown(list(records[0]))}. Clients"
                    " must return the arrays under the names with which they came"
                )
            read[name] = checked_array(named[name], name, (dtype, "float32", "float64"), shape)
        with np.errstate(over="ignore"):
            return self.flat_of(read, self.number)

    def _named(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """A reply's arrays by the model's names.

        The prefixes of wrapped modules are ignored if names stay unique without them. A list of all
        arrays, with the names 0, 1, …, is read in the model's order.
        """
        if all(name in arrays for name, _, _ in self.trained):
            return arrays
        if list(arrays) == [str(place) for place in range(len(self.names))]:
            return dict(zip(self.names, arrays.values(), strict=True))
        plain = {_plain(name): name for name in self.names}
        sent = {_plain(name) for name in arrays}
        if len(plain) < len(self.names) or len(sent) < len(arrays):
            return arrays
        return {plain.get(_plain(name), name): array for name, array in arrays.items()}

    @property
    def most_bytes(self) -> int:
        """Of a reply that holds the model a few times, metrics and whatever else clients send."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return 2**26 + 8 * sum(
            int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for s, d in sizes
        )


def _plain(name: str) -> str:
    """A name without the prefixes of wrapped modules."""
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name
