"""Nested values with tensors as bytes, for the states that a ledger records.

The bytes are the length of a description in JSON, the description, and the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pack(value: Mapping[str, Any]) -> bytes:
    """Return a nested dict of JSON-able values and tensors as bytes; reading them runs no code.

    >>> unpack(pack({"t": 3, "noise": {"stored": torch.ones(2)}}))
    {'t': 3, 'noise': {'stored': tensor([1., 1.])}}
    """
    arrays: list[memoryview] = []

    def description(tensor: Tensor) -> dict[str, Any]:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        arrays.append(array.reshape(-1).view(np.uint8).data)  # copied once, below
        return {"tensor": array.dtype.str, "shape": tensor.shape}

    text = json.dumps(value, default=description).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def unpack(content: bytes) -> dict[str, Any]:
    """Return the dict that `pack` wrote.

    Raises:
        ValueError: the bytes are something else.
    """
    end_of_text = 8 + int.from_bytes(content[:8], "little")
    next_tensor = end_of_text

    def tensor_or_dict(value: dict[str, Any]) -> Any:
        nonlocal next_tensor
        if value.keys() != {"tensor", "shape"}:
            return value
        dtype = np.dtype(value["tensor"])
        shape = tuple(value["shape"])
        size = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, size, next_tensor).reshape(shape)
        next_tensor += array.nbytes
        return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=True))

    return json.loads(content[8:end_of_text], object_hook=tensor_or_dict)
