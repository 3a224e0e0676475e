"""Tensors in messages: by reference inside a process, as bytes between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SType
from numpy.typing import NDArray
from torch import Tensor

from fedmf.flower.boundary import checked_array


class TensorArray(Array):
    """A Flower array that holds a tensor and turns it into bytes only when bytes are asked for.

    Flower serialises an array when it is constructed. In the in-process engine no byte ever travels, and
    for a model of 10⁸ parameters on a GPU that would be three copies through the host in each round.

    Args:
        tensor: any shape and device. It must not change as long as the message lives: the bytes are made
            once, late.
    """

    def __init__(self, tensor: Tensor) -> None:
        held = tensor.detach()
        name = str(held.dtype).removeprefix("torch.")
        self.__dict__.update(tensor=held, dtype=name, shape=tuple(held.shape), stype=SType.NUMPY)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes that Flower's own arrays hold."""
        if "_data" not in self.__dict__:
            buffer = BytesIO()
            np.save(buffer, self.__dict__["tensor"].cpu().numpy(), allow_pickle=False)
            self.__dict__["_data"] = buffer.getvalue()
        return self.__dict__["_data"]

    def numpy(self) -> NDArray[Any]:
        """A copy, as from Flower's own arrays."""
        return self.__dict__["tensor"].cpu().numpy().copy()

    def __reduce__(self) -> tuple[type[Array], tuple[str, tuple[int, ...], str, bytes]]:
        """Another process gets an ordinary array."""
        return Array, (self.dtype, self.shape, self.stype, self.data)


# The name is part of what Flower writes on the wire, and the receiver looks the class up by it.
TensorArray.__qualname__ = Array.__qualname__


def tensor_of(array: Array) -> Tensor:
    """The tensor of an array: the sender's own where the message never left the process.

    Raises:
        TypeError, ValueError: the bytes are not those of an array.
    """
    if isinstance(array, TensorArray):
        return array.__dict__["tensor"]
    return torch.from_numpy(np.require(array.numpy(), requirements=["C", "W"]))


def checked_tensor(array: Array, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    """The tensor of a stranger's array, of one of these types and this shape; checked before any decoding.

    Raises:
        ValueError: anything else.
    """
    if isinstance(array, TensorArray):
        if array.dtype not in dtypes or array.shape != shape:
            raise ValueError(
                f"array {name!r} must be {' or '.join(dtypes)} of shape {shape}; got {array.dtype} of "
                f"shape {array.shape}"
            )
        return array.__dict__["tensor"]
    # A copy: what was decoded lies, read-only, in the message's own bytes.
    return torch.from_numpy(checked_array(array, name, dtypes, shape).copy())


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """A record of tensors by reference; Flower's own constructors would turn them into bytes."""
    record = ArrayRecord()
    for name, tensor in tensors.items():
        record[name] = TensorArray(tensor)
    return record
