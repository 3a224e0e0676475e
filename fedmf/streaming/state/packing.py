"""The state of a moment stream as bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def pack_state(state: Mapping[str, Any]) -> bytes:
    """A nested dict of numbers, strings and float64 tensors as a NumPy archive without pickled objects."""
    arrays: dict[str, Any] = {}

    def plain(prefix: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(f"{prefix}{name}.", inner) for name, inner in value.items()}
        if hasattr(value, "numpy"):
            arrays[prefix] = value.numpy()
            return {"array": prefix}
        return value

    text = json.dumps(plain("", state))
    buffer = io.BytesIO()
    np.savez(buffer, json=np.frombuffer(text.encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """What `pack_state` packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:

        def whole(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            if set(value) == {"array"}:
                return torch.from_numpy(arrays[value["array"]].copy())
            return {name: whole(inner) for name, inner in value.items()}

        return whole(json.loads(arrays["json"].tobytes()))
