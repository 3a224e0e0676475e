"""States of a run: what a round leaves to be gone on with, in bytes that are committed with its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmf.errors import LedgerError
from fedmf.records.frames import State
from fedmf.records.ledger import Ledger


def pack_state(parameters: Tensor, optimizer_state: Mapping[str, Tensor], noise: Mapping[str, Any]) -> State:
    """θ, the optimizer state and the position of the noise, as `Ledger.commit_round` takes them.

    A description in JSON, then the tensors as they lie in memory: reading it runs no code. It holds no noise:
    past outputs, which are as secret as the key, are made again from the position.
    """
    tensors = {
        "parameters": parameters,
        **{f"optimizer.{name}": value for name, value in optimizer_state.items()},
    }
    arrays = [np.asarray(tensor.detach().cpu().numpy(), order="C") for tensor in tensors.values()]
    arrays = [array.astype(array.dtype.newbyteorder("<"), copy=False) for array in arrays]
    described = [[name, array.dtype.str, array.shape] for name, array in zip(tensors, arrays, strict=True)]
    text = json.dumps([described, dict(noise)]).encode()
    return State.of([text, *(array.reshape(-1).view(np.uint8).data for array in arrays)])


def load_state(ledger: Ledger, name: str, digest: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Read back what `pack_state` made.

    Args:
        ledger: with which it was committed.
        name: of the state.
        digest: its SHA-256, which the row of its round names.

    Raises:
        LedgerError: it is missing or damaged.
    """
    pieces = ledger.state(digest)
    if pieces is None:
        raise LedgerError(
            f"state {name} that ledger {ledger.path} committed is in none of the files beside it. "
            "Restore them all from the same copy."
        )
    described, noise = json.loads(pieces[0])
    tensors = {
        str(key): torch.from_numpy(np.frombuffer(bytearray(piece), np.dtype(dtype)).reshape(shape))
        for (key, dtype, shape), piece in zip(described, pieces[1:], strict=True)
    }
    parameters = tensors.pop("parameters")
    return parameters, {name.removeprefix("optimizer."): value for name, value in tensors.items()}, noise


def with_head(noise: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The position of the noise and the record that the state follows, for `pack_state`."""
    return {**noise, "head": ledger.head().hex()}


def without_head(noise: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The position of the noise, once the state is seen to follow a record that the ledger holds.

    Raises:
        LedgerError: it does not: rows are missing, or the files are of different copies.
    """
    if not ledger.holds(bytes.fromhex(noise.get("head", ""))):
        raise LedgerError(
            f"the last state of ledger {ledger.path} follows a record that the ledger does not hold. "
            "Restore its files from the same copy."
        )
    return {name: value for name, value in noise.items() if name != "head"}
