"""Files of named tensors that other programs read and write: safetensors, and PyTorch's own."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
from torch import Tensor

from fedmf.errors import ConfigError, LedgerError
from fedmf.records.frames import State
from fedmf.records.ledger import Ledger
from fedmf.records.new_places import new_file


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


#: Types by their names in a safetensors header.
_TYPES: Final = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _TYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a new file, whole or not at all, that its owner alone may read.

    A ``.safetensors`` file is the length of its header (8 bytes, little-endian), a header in JSON, padded by
    spaces to a multiple of 8 bytes, and the tensors one after another. A ``.pt`` file holds a dict of
    tensors, for ``torch.load(..., weights_only=True)``.

    Args:
        path: ends with ``.safetensors`` or ``.pt``.
        tensors: by name, each of its own type.
        about: what a safetensors file says of itself; a ``.pt`` file has no place for it.

    Raises:
        ConfigError: another ending, there is something at that place already, or it cannot be written.
    """
    writers = {".safetensors": _write_safetensors, ".pt": _write_pt}
    _check_ending(path)
    with new_file(path) as file:
        writers[path.suffix](file, {name: t.detach().cpu() for name, t in tensors.items()}, about)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or ``.pt`` file by name; no code of the file is run.

    Args:
        path: of a file as `write_tensors` or others make it.

    Raises:
        ConfigError: another ending, it cannot be read, or it is damaged or holds something else.
    """
    _check_ending(path)
    try:
        if path.suffix == ".pt":
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        else:
            tensors = _parsed(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
    except Exception as error:  # whatever a damaged file may cause
        raise ConfigError(f"{path} is no file of tensors: {type(error).__name__}.") from None
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ConfigError(f"{path} must hold a dict of tensors, as state_dict() gives it.")
    return {str(name): tensor.detach() for name, tensor in tensors.items()}


def _check_ending(path: Path) -> None:
    if path.suffix not in (".safetensors", ".pt"):
        raise ConfigError(f"file (of a model) must end with .safetensors or .pt; got {path.name!r}.")


def _write_pt(file: IO[bytes], tensors: Mapping[str, Tensor], _about: Mapping[str, str]) -> None:
    torch.save({**tensors}, file)


def _write_safetensors(file: IO[bytes], tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    header: dict[str, object] = {"__metadata__": {**about}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.element_size() * tensor.numel()
        entry = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = entry
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(_little_endian(tensor.contiguous().reshape(-1).view(torch.uint8), tensor.element_size()))


def _little_endian(content: Tensor, size: int) -> bytes:
    """Bytes of numbers of so many bytes each, from or to the order of this machine."""
    numbers = content.numpy().reshape(-1, size)
    return (numbers if sys.byteorder == "little" else numbers[:, ::-1]).tobytes()


def _parsed(content: bytes) -> dict[str, Tensor]:
    begin = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        dtype, shape = _TYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
        first, end = (begin + int(offset) for offset in entry["data_offsets"])
        if not begin <= first <= end <= len(content) or end - first != math.prod(shape) * dtype.itemsize:
            raise ValueError(name)
        raw = torch.from_numpy(np.frombuffer(content[first:end], np.uint8).copy())
        ordered = _little_endian(raw, dtype.itemsize)
        flat = torch.frombuffer(bytearray(ordered), dtype=dtype) if ordered else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(shape)
    return tensors
