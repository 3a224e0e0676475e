"""Checkpoints: one durable file a round, named by the ledger row that makes it count."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["load_checkpoint", "save_checkpoint", "sync_directory", "write_durably"]


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
    buffer = io.BytesIO()
    np.savez(buffer, **plain)
    content = buffer.getvalue()
    write_durably(path, content)
    return hashlib.sha256(content).hexdigest()


def load_checkpoint(path: Path, digest: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Read back what ``save_checkpoint`` wrote.

    Raises:
        ValueError: the file is missing, unreadable, or not the one the ledger committed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read checkpoint {path}: {error.strerror}.") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"checkpoint {path} is not the one the ledger committed: its SHA-256 differs.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        tensors = {name: torch.from_numpy(arrays[name].copy()) for name in arrays.files}
    parameters, noise = tensors.pop("parameters"), json.loads(tensors.pop("noise").numpy().tobytes())
    return parameters, {name.removeprefix("optimizer."): value for name, value in tensors.items()}, noise
