"""Models as named tensors: what a run released, from its directory alone, and what another starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.records.packed import unpack
from fedmf.records.tensor_files import read_tensors
from fedmf.runs.directory import WHOLE_MODEL, opened_record
from fedmf.runs.model_layout import ModelLayout


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """The model that a run released last, as far as it was kept.

    Args:
        tensors: by the names of the module's parameters.
        rounds: how many rounds are in it.
        software: name and version of what the run was started with.
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
            kept = ledger.state()
            if kept is None or not ledger.released:
                raise ConfigError(f"{path} has no model yet: no round of the run was released.")
        state = unpack(kept)
        flat, noise = state["parameters"], state["noise"]
        parts = flat.split([math.prod(shape) for _, shape in header.arrays])
        tensors = {
            name: part.reshape(shape).clone()
            for (name, shape), part in zip(header.arrays, parts, strict=True)
        }
        if _FINGERPRINT in header.run["task"]:
            layout = ModelLayout.load(path / WHOLE_MODEL, str(header.run["task"][_FINGERPRINT]))
            tensors = {name: torch.from_numpy(array) for name, array in layout.arrays(flat).items()}
        return cls(tensors, int(noise["t"]), header.software)


#: Where a task records `ModelLayout.fingerprint`.
_FINGERPRINT: Final = "arrays"


def load_model(path: str | Path) -> dict[str, Tensor]:
    """The model that a run released last, for ``load_state_dict`` of the module that was trained.

    It is as private as the run's statement says, whatever is done with it.

    Args:
        path: of a finished, running or stopped run. Neither its data nor its task are needed.

    Returns:
        Tensors on the CPU by the names of the module's trained parameters, float32; frozen ones are public
        and stays with the module (``strict=False``, or `FlatModel.state`). Of a Flower app that
        `CorrelatedNoise` trained: all arrays that it began with, frozen ones and integers too, each of
        its own type. A parameter that a module uses under several names is there once.

    Raises:
        ConfigError: it is not a run directory, or no round was released yet.
        LedgerError, ValueError: its records are damaged.
    """
    return ReleasedModel.of(Path(path)).tensors


def initial_parameters(path: Path, model: FlatModel) -> Tensor:
    """θ_0 from a file of tensors by the names of the module's parameters, shape (d,), float32.

    Raises:
        ConfigError: a parameter is missing, has another shape, no floating type, or entries that are not
            finite; or the file holds a tensor that the module has not.
    """
    tensors = read_tensors(path)
    state = model.state(model.initial())
    strangers = sorted(tensors.keys() - state.keys())
    if strangers:
        raise ConfigError(
            f"initial (file of the model) must hold its parameters alone; got {strangers[0]!r}."
        )
    for name in sorted(tensors.keys() & model.constants.keys()):
        if not torch.equal(tensors[name], state[name].cpu()):
            raise ConfigError(
                f"initial (file of the model) must hold the frozen values; {name!r} has others. "
                "Every process must have them: load them where the model is made."
            )
    for name, shape in model.arrays:
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape or not tensor.is_floating_point():
            got = "none" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ConfigError(
                f"initial (file of the model) must hold {name!r}, floats of shape {shape}; got {got}."
            )
        if not tensor.isfinite().all():
            raise ConfigError(f"initial (file of the model) must be finite; {name!r} is not.")
    return torch.cat([tensors[name].to(torch.float32).reshape(-1) for name, _ in model.arrays])
