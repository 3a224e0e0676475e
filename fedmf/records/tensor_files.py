"""Files of named tensors that other programs read: safetensors, and PyTorch's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.records.new_files import new_file

__all__ = ["write_tensors"]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a new file, whole or not at all, that its owner alone may read.

    A ``.safetensors`` file is the length of its header (8 bytes, little-endian), a header in JSON, padded by
    spaces to a multiple of 8 bytes, and the tensors one after another. A ``.pt`` file holds a dict of
    tensors, for ``torch.load(..., weights_only=True)``.

    Args:
        path: ends with ``.safetensors`` or ``.pt``.
        tensors: float32.
        about: what a safetensors file says of itself; a ``.pt`` file has no place for it.

    Raises:
        ConfigError: another ending, there is something at that place already, or it cannot be written.
    """
    writers = {".safetensors": _write_safetensors, ".pt": _write_pt}
    if path.suffix not in writers:
        raise ConfigError(f"file (of a model) must end with {' or '.join(writers)}; got {path.name!r}.")
    with new_file(path) as file:
        writers[path.suffix](file, {name: t.detach().cpu() for name, t in tensors.items()}, about)


def _write_pt(file: IO[bytes], tensors: Mapping[str, Tensor], _about: Mapping[str, str]) -> None:
    torch.save({**tensors}, file)


def _write_safetensors(file: IO[bytes], tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    header: dict[str, object] = {"__metadata__": {**about}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        array = tensor.to(torch.float32).contiguous().numpy()
        file.write((array if sys.byteorder == "little" else array.byteswap()).tobytes())
