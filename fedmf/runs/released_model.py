"""Models as named tensors: what a run released, from its directory alone, and what another starts from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.records.durable import replace_durably
from fedmf.records.packed import unpack
from fedmf.records.tensor_files import read_tensors
from fedmf.runs.directory import WHOLE_MODEL, opened_record


@dataclass(frozen=True, eq=False)
class WholeModel:
    """All arrays of a model of which a run trains some, in their order; the others stay what they were.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        kept: the values of those that are not trained, by name.
        tied: of an array that is another one under a second name, that other one's.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    kept: Mapping[str, NDArray[Any]]
    tied: Mapping[str, str] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """SHA-256 of names, shapes, types and the arrays that stay."""
        digest = hashlib.sha256(json.dumps(self._described(sorted(self.kept))).encode())
        for name in sorted(self.kept):
            digest.update(np.ascontiguousarray(self.kept[name]).tobytes())
        return digest.hexdigest()

    def _described(self, kept: list[str]) -> list[Any]:
        """All but the values; ties where there are any, which earlier records do not mention."""
        return [self.names, self.shapes, self.dtypes, kept, *([dict(self.tied)] if self.tied else [])]

    def save(self, path: Path) -> None:
        """As a NumPy archive without pickled objects: what stays, and a description of all."""
        described = json.dumps(self._described(list(self.kept))).encode()
        arrays = {f"kept-{place}": array for place, array in enumerate(self.kept.values())}
        content: dict[str, Any] = {"model": np.frombuffer(described, np.uint8), **arrays}
        replace_durably(path, lambda file: np.savez(file, **content))

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Self:
        """What `save` wrote.

        Raises:
            ConfigError: it cannot be read, or is not what was recorded.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                names, shapes, dtypes, kept, *tied = json.loads(archive["model"].tobytes())
                values = {name: archive[f"kept-{place}"] for place, name in enumerate(kept)}
            model = cls(tuple(names), tuple(map(tuple, shapes)), tuple(dtypes), values, *tied)
            same = model.fingerprint() == fingerprint
        except Exception as error:  # whatever a damaged file may cause
            raise ConfigError(
                f"cannot read {path} (all arrays of the model): {type(error).__name__}."
            ) from None
        if not same:
            raise ConfigError(f"{path} (all arrays of the model) must be what the run began with; it is not.")
        return model

    def tensors(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of them, each of its own type, for ``load_state_dict``."""
        return {
            name: torch.from_numpy(
                (self.kept[name] if name in self.kept else trained[self.tied.get(name, name)].numpy()).astype(
                    dtype
                )
            )
            for name, dtype in zip(self.names, self.dtypes, strict=True)
        }


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
        arrays = header.arrays or (("parameters", (header.dimension,)),)
        parts = flat.split([math.prod(shape) for _, shape in arrays])
        tensors = {
            name: part.reshape(shape).clone() for (name, shape), part in zip(arrays, parts, strict=True)
        }
        if _FINGERPRINT in header.run["task"]:
            whole = WholeModel.load(path / WHOLE_MODEL, str(header.run["task"][_FINGERPRINT]))
            tensors = whole.tensors(tensors)
        return cls(tensors, int(noise["t"]), header.software)


#: Where a task records `WholeModel.fingerprint`.
_FINGERPRINT: Final = "arrays"


def load_model(path: str | Path) -> dict[str, Tensor]:
    """The model that a run released last, for ``load_state_dict`` of the module that was trained.

    It is as private as the run's statement says, whatever is done with it.

    Args:
        path: of a finished, running or stopped run. Neither its data nor its task are needed.

    Returns:
        Tensors on the CPU by the names of the module's trained parameters, float32; what is frozen is public
        and stays with the module (``strict=False``, or `FlatModel.state`). Of a Flower app that
        `CorrelatedNoise` trained: all arrays that it began with, frozen ones and whole numbers too, each of
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
                f"initial (file of the model) must hold the values of what is frozen; {name!r} has others. "
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
