"""Files of named tensors that other programs read and write: safetensors, and PyTorch's own."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.records.new_places import new_file


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a new file, whole or not at all, that its owner alone may read.

    Args:
        path: ends with ``.safetensors``, or with ``.pt`` for ``torch.load(..., weights_only=True)``.
        tensors: by name, each of its own type.
        about: what a safetensors file says of itself; a ``.pt`` file has no place for it.

    Raises:
        ConfigError: another ending, there is something at that place already, or it cannot be written.
    """
    _check_ending(path)
    copied = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if path.suffix == ".pt":
        buffer = io.BytesIO()
        torch.save(copied, buffer)
        content = buffer.getvalue()
    else:
        content = safetensors.torch.save(copied, dict(about))
    with new_file(path) as file:
        file.write(content)


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
            tensors = safetensors.torch.load(path.read_bytes())
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
