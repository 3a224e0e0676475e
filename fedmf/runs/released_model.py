"""The released model of a run, from its directory alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.records import load_checkpoint
from fedmf.runs.directory import CHECKPOINTS, opened_record

__all__ = ["ReleasedModel", "load_model"]


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """The model that a run released last, as far as it was kept.

    Args:
        tensors: float32 tensors by the names of the module's parameters.
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
        while True:
            with opened_record(path) as (header, ledger, _):
                committed = ledger.checkpoint()
            if committed is None:
                raise ConfigError(f"{path} has no model yet: no round of the run was released.")
            _, name, digest = committed
            try:
                flat, _, noise = load_checkpoint(path / CHECKPOINTS / name, digest)
            except ValueError:
                with opened_record(path) as (_, ledger, _):
                    if ledger.checkpoint() == committed:  # else the run went on and tidied this one away
                        raise
                continue
            arrays = header.arrays or (("parameters", (header.dimension,)),)
            parts = flat.split([math.prod(shape) for _, shape in arrays])
            tensors = {
                name: part.reshape(shape).clone() for (name, shape), part in zip(arrays, parts, strict=True)
            }
            return cls(tensors, int(noise["t"]), header.software)


def load_model(path: str | Path) -> dict[str, Tensor]:
    """The model that a run released last, for ``load_state_dict`` of the module that was trained.

    It is as private as the run's statement says, whatever is done with it.

    Args:
        path: of a finished, running or stopped run. Neither its data nor its task are needed.

    Returns:
        Float32 tensors on the CPU by the names of the module's parameters. A parameter that a module uses
        under several names is there once.

    Raises:
        ConfigError: it is not a run directory, or no round was released yet.
        LedgerError, ValueError: its records are damaged.
    """
    return ReleasedModel.of(Path(path)).tensors
