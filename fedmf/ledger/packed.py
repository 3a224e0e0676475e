"""Nested values with tensors as bytes: the length of a description in JSON, the description, the
tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pack(value: Mapping[str, Any]) -> bytes:
    """A nested dict of JSON-able values and tensors; reading it back runs no code.

    >>> unpack(pack({"t": 3, "noise": {"kept": torch.ones(2)}}))
    {'t': 3, 'noise': {'kept': tensor([1., 1.])}}
    """
    arrays: list[memoryview] = []

    def described(tensor: Tensor) -> dict[str, Any]:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        arrays.append(array.reshape(-1).view(np.uint8).data)  # copied once, below
        return {"tensor": array.dtype.str, "shape": tensor.shape}

    text = json.dumps(value, default=described).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` packed.

    Raises:
        ValueError: it is something else.
    """
    at = 8 + int.from_bytes(content[:8], "little")

    def whole(value: dict[str, Any]) -> Any:
        nonlocal at
        if value.keys() != {"tensor", "shape"}:
            return value
        dtype = np.dtype(value["tensor"])
        shape = tuple(value["shape"])
        numbers = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, numbers, at).reshape(shape)
        at += array.nbytes
        return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=True))

    return json.loads(content[8:at], object_hook=whole)
