"""The arrays of a Flower app's model as one flat vector, and the check of replies against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.flower.handshake import RejectedReply, require_no_error, shown
from fedmf.flower.messages import checked_array, decoded, encoded
from fedmf.runs.model_layout import ModelLayout, check_type

#: Prefixes of all names in a module that PyTorch wraps (DataParallel, compile).
_PREFIXES: Final = ("module.", "_orig_mod.")


class ArrayLayout(ModelLayout):
    """The layout of a model that is sent and received as Flower's records."""

    @classmethod
    def of(cls, arrays: ArrayRecord, frozen: Sequence[str] = (), tied: bool | None = None) -> Self:
        """Return the layout of a record; the arguments are those of `ModelLayout.of_arrays`."""
        if not isinstance(arrays, ArrayRecord):
            raise ConfigError(
                f"initial_arrays must be an ArrayRecord; got {type(arrays).__name__}. For a module"
                " it is ArrayRecord(module.state_dict())."
            )
        for name, array in arrays.items():
            check_type(name, array.dtype)  # before it is decoded
        return cls.of_arrays(decoded(arrays), frozen, tied)

    def flat(self, arrays: Mapping[str, Array], number: Any = np.float64) -> Tensor:
        """Return the trained arrays as one flat vector of type ``number``."""
        return self.flat_of({name: arrays[name].numpy() for name, _, _ in self.trained}, number)

    def record(self, flat: Tensor) -> ArrayRecord:
        """Return all arrays of a model, each of its own type."""
        return encoded(self.arrays(flat))

    def as_sent(self, flat: Tensor) -> Tensor:
        """Return the numbers of a model as its arrays hold them, of type `number`."""
        if self.number == np.float32:
            return flat.detach().to("cpu", torch.float32)
        return self.flat_of(self.trained_arrays(flat), self.number)

    def trained_record(self, flat: Tensor) -> ArrayRecord:
        """Return only the trained arrays of a model."""
        return encoded(self.trained_arrays(flat))

    def read(self, message: Message) -> Tensor:
        """Return the trained numbers of a reply as one flat vector of type `number`.

        Types, shapes and sizes are checked before any array is decoded. Arrays of float32 and
        float64 are converted to the model's type; a number beyond its range becomes infinite, so
        that the user's contribution is zero.

        Raises:
            RejectedReply: an error of the client, or an array is missing, is not of the model, or
                has another type, shape or size.
        """
        require_no_error(message)
        records = list(message.content.array_records.values())
        if len(records) != 1:
            rule = "reply must hold one array record"
            remedy = "Clients must return the model in one ArrayRecord"
            raise RejectedReply(f"{rule}; got {len(records)}. {remedy}", f"{rule}. {remedy}")
        named = self._named(records[0])
        self._require_names(named, records[0])
        read = dict[str, NDArray[Any]]()
        for name, shape, dtype in self.trained:
            read[name] = checked_array(named[name], name, (dtype, "float32", "float64"), shape)
        with np.errstate(over="ignore"):
            return self.flat_of(read, self.number)

    def _require_names(self, named: Mapping[str, Array], sent: Mapping[str, Array]) -> None:
        """Reject a reply without an array of the model, or with one that the model lacks.

        Args:
            named: the arrays by the model's names.
            sent: the arrays by the names in the reply.

        Raises:
            RejectedReply: the names differ.
        """
        remedy = (
            f"The model has {shown(list(self.names))}: clients must return its arrays under the"
            " names with which they came, and no others"
        )
        got = f"it has {shown(list(sent))}"
        for name, _, _ in self.trained:
            if name not in named:
                fault = f"reply has no array {shown(name)}"
                raise RejectedReply(f"{fault}; {got}. {remedy}", f"{fault}. {remedy}")
        others = [name for name in named if name not in self.names]
        if others:
            fault = "reply has arrays that the model lacks"
            raise RejectedReply(f"{fault}: {shown(others)}. {remedy}", f"{fault}. {remedy}")

    def _named(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return a reply's arrays by the model's names.

        The prefixes of wrapped modules are ignored if names stay unique without them. A list of all
        arrays, with the names 0, 1, …, is read in the model's order.
        """
        if all(name in arrays for name, _, _ in self.trained):
            return arrays
        if list(arrays) == [str(index) for index in range(len(self.names))]:
            return dict(zip(self.names, arrays.values(), strict=True))
        name_of = {_without_prefixes(name): name for name in self.names}
        sent = {_without_prefixes(name) for name in arrays}
        if len(name_of) < len(self.names) or len(sent) < len(arrays):
            return arrays
        named = dict[str, Array]()
        for name, array in arrays.items():
            named[name_of.get(_without_prefixes(name), name)] = array
        return named

    @property
    def most_bytes(self) -> int:
        """Most bytes of a reply, with room for a few copies of the model, metrics and more."""
        model_bytes = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            model_bytes += int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return 2**26 + 8 * model_bytes


def _without_prefixes(name: str) -> str:
    """Return a name without the prefixes of wrapped modules."""
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name
