"""Models as named tensors: released models, initial parameters, and files of both."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import safetensors.torch
import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.ledger.durable_files import new_file
from fedmf.ledger.packed import unpack
from fedmf.models import FlatModel
from fedmf.runs.directory import WHOLE_MODEL, opened_record
from fedmf.runs.model_layout import ModelLayout, named_copies


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """The last released model of a run that its directory holds.

    Args:
        tensors: by the names of the module's parameters.
        rounds: the number of rounds after which it was released.
        software: name and version of the software that started the run.
    """

    tensors: dict[str, Tensor]
    rounds: int
    software: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read it from a run directory; neither data nor the code of the task are needed.

        Raises:
            ConfigError: it is not a run directory, or no round was released yet.
            LedgerError, ValueError: its records are damaged.
        """
        with opened_record(path) as (header, ledger):
            packed = ledger.state()
            if packed is None or not ledger.released:
                raise ConfigError(f"{path} has no model yet: no round of the run was released.")
        state = unpack(packed)
        flat = state["parameters"]
        tensors = dict[str, Tensor]()
        if _FINGERPRINT in header.run["task"]:
            layout = ModelLayout.load(path / WHOLE_MODEL, str(header.run["task"][_FINGERPRINT]))
            for name, array in layout.arrays(flat).items():
                tensors[name] = torch.from_numpy(array)
        else:
            tensors = named_copies(flat, header.arrays, header.tied)
            if header.whole_model:
                layout = ModelLayout.load(path / WHOLE_MODEL, header.whole_model)
                for name, array in layout.constants.items():
                    tensors[name] = torch.from_numpy(array)
        return cls(tensors, int(state["noise"]["t"]), header.software)


#: Where a task records `ModelLayout.fingerprint`.
_FINGERPRINT: Final = "arrays"


def load_model(path: str | Path) -> dict[str, Tensor]:
    """The last released model of a run, for ``load_state_dict`` of the trained module.

    The statement of the run covers it.

    Args:
        path: the directory of a finished, stopped or running run; its data and task are not needed.
            Of a running or killed one, the model at the last checkpoint.

    Returns:
        Tensors on the CPU by the names of the user's own module's state: without `LogitsOf`, and
        with LoRA as `with_lora` returns it. Trained parameters are float32, and a tied one is there
        under all of its names; frozen parameters and buffers have their own types. If these take
        more than 256 MiB, they stay with the module (``strict=False``). For a Flower app that
        `CorrelatedNoise` trained: all its initial arrays, including frozen ones and integers, each
        of its own type.

    Raises:
        ConfigError: it is not a run directory, or no round was released yet.
        LedgerError, ValueError: its records are damaged.
    """
    return ReleasedModel.of(Path(path)).tensors


def initial_parameters(path: Path, model: FlatModel) -> Tensor:
    """θ_0 from a file of tensors by the names of the module's parameters, shape (d,), float32.

    Raises:
        ConfigError: a parameter is missing, has another shape, no floating type, or entries that
            are not finite; or the file holds a tensor that the module lacks.
    """
    tensors = read_tensors(path)
    state = model.state(model.initial())
    unknown = sorted(tensors.keys() - state.keys())
    if unknown:
        raise ConfigError(
            f"initial (file of the model) must hold only its parameters; got {unknown[0]!r}."
        )
    for name in sorted(tensors.keys() & model.constants.keys()):
        if not torch.equal(tensors[name], state[name].cpu()):
            raise ConfigError(
                f"initial (file of the model) must hold the frozen values; {name!r} has others. "
                "Every process needs them: load them where the model is created."
            )
    for name, shape in model.arrays:
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape or not tensor.is_floating_point():
            got = "none"
            if tensor is not None:
                got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ConfigError(
                f"initial (file of the model) must hold {name!r}, floats of shape {shape}; got"
                f" {got}."
            )
        if not tensor.isfinite().all():
            raise ConfigError(f"initial (file of the model) must be finite; {name!r} is not.")
    return torch.cat([tensors[name].to(torch.float32).reshape(-1) for name, _ in model.arrays])


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a new file, completely or not at all, that only its owner may read.

    Args:
        path: ends with ``.safetensors``, or with ``.pt`` for ``torch.load(...,
            weights_only=True)``.
        tensors: by name, each of its own type.
        about: metadata of a safetensors file; a ``.pt`` file has none.

    Raises:
        ConfigError: another suffix, the path exists already, or it cannot be written.
    """
    _check_suffix(path)
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
        path: a file of `write_tensors` or another program.

    Raises:
        ConfigError: another suffix, it cannot be read, or it is damaged or holds something else.
    """
    _check_suffix(path)
    try:
        if path.suffix == ".pt":
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        else:
            tensors = safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
    except Exception as error:  # a damaged file may raise anything
        raise ConfigError(f"{path} is not a file of tensors: {type(error).__name__}.") from None
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ConfigError(f"{path} must hold a dict of tensors, as state_dict() gives it.")
    return {str(name): tensor.detach() for name, tensor in tensors.items()}


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".safetensors", ".pt"):
        raise ConfigError(
            f"file (of a model) must have the suffix .safetensors or .pt; got {path.name!r}."
        )
