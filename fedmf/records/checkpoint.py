"""Checkpoints: one durable file a round, named by the ledger row that makes it count."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from fedmf.errors import LedgerError
from fedmf.records.durable import replace_durably
from fedmf.records.ledger import Ledger

__all__ = ["load_checkpoint", "save_checkpoint", "with_head", "without_head"]


class _Hashing:
    """A file that can only be appended to and hashes what passes through, so that no copy is kept.

    Having no `seek`, it makes the archive a stream: sizes follow the data they describe.
    """

    def __init__(self, file: BinaryIO, digest: hashlib._Hash) -> None:
        self._file, self._digest = file, digest

    def write(self, content: bytes) -> int:
        """Append and hash."""
        self._digest.update(content)
        return self._file.write(content)

    def read(self, _size: int = -1) -> bytes:
        """Refused; NumPy takes an object without this method for a path."""
        raise io.UnsupportedOperation("read")

    def flush(self) -> None:
        """Pass what is buffered on to the operating system."""
        self._file.flush()


def save_checkpoint(
    path: Path, parameters: Tensor, optimizer_state: Mapping[str, Tensor], noise: Mapping[str, Any]
) -> str:
    """Write θ, the optimizer state and the position of the noise durably; returns the SHA-256 of the file.

    The file is a NumPy archive without pickled objects, so loading one runs no code. It holds no noise: the
    position is JSON, and past outputs, which are as secret as the key, are made again from it.
    """
    arrays = {
        "parameters": parameters,
        **{f"optimizer.{name}": value for name, value in optimizer_state.items()},
    }
    plain: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in arrays.items()}
    plain["noise"] = np.frombuffer(json.dumps(dict(noise)).encode(), np.uint8)
    digest = hashlib.sha256()
    replace_durably(path, lambda file: np.savez(cast(BinaryIO, _Hashing(file, digest)), **plain))
    return digest.hexdigest()


def with_head(noise: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The position of the noise and the record that the state follows, for `save_checkpoint`."""
    return {**noise, "head": ledger.head().hex()}


def without_head(path: Path, noise: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The position of the noise, once the checkpoint is seen to follow a record that the ledger holds.

    Raises:
        LedgerError: it does not: rows are missing, or the files are of different copies.
    """
    head = noise.get("head", "")
    if not ledger.holds(bytes.fromhex(head)):
        raise LedgerError(
            f"checkpoint {path} follows a record that ledger {ledger.path} does not hold. "
            "Restore both from the same copy."
        )
    return {name: value for name, value in noise.items() if name != "head"}


def load_checkpoint(path: Path, digest: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Read back what ``save_checkpoint`` wrote.

    Raises:
        ValueError: the file is missing, unreadable, or not the one the ledger committed.
    """
    try:
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(
                    f"checkpoint {path} is not the one the ledger committed: its SHA-256 differs."
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except OSError as error:
        raise ValueError(f"cannot read checkpoint {path}: {error.strerror}.") from None
    parameters, noise = tensors.pop("parameters"), json.loads(tensors.pop("noise").numpy().tobytes())
    return parameters, {name.removeprefix("optimizer."): value for name, value in tensors.items()}, noise
