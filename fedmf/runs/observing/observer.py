"""What an observer of a run is, and what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmf.models import FlatModel


class ObserverError(RuntimeError):
    """An observer raised; the round that it was shown is kept, and the run can be gone on with."""


@dataclass(frozen=True, eq=False)
class Standing:
    """Where a run stands: what it has released and recorded, and nothing else about its users.

    Args:
        rounds: how many rounds are released; 0 is the initial model.
        horizon: n.
        opening: whether the run stood here when this process opened it. An earlier process may have shown it.
        metrics: the rows of the metrics table so far, by released rounds. Columns whose name ends with
            ``_not_private`` come from users' own examples without noise, and no ε counts them.
        path: the run directory.
        released: the model, flat.
        layout: of the flat model.

    Guarantees:
        Round t is committed before a `Standing` of it exists. Nothing in it is who took part or failed.
    """

    rounds: int
    horizon: int
    opening: bool
    metrics: Mapping[int, Mapping[str, Any]]
    path: Path
    released: Tensor
    layout: FlatModel

    @property
    def row(self) -> Mapping[str, Any] | None:
        """The newest model's metrics, with ε so far; None if it was not evaluated."""
        return self.metrics.get(self.rounds)

    @property
    def public(self) -> dict[str, float]:
        """Of `row` what may be shown to everybody: numbers that are there and not marked as not private."""
        row = self.row or {}
        return {name: value for name, value in row.items() if value is not None and is_public(name)}

    def parameters(self) -> Tensor:
        """A copy of the newest released model, shape (d,)."""
        return self.released.detach().clone()

    def model(self) -> dict[str, Tensor]:
        """A copy of it by the names of the module's trained parameters, as `load_model` gives it."""
        parts = self.layout.unflatten(self.released.detach().to("cpu", torch.float32))
        return {name: parts[name].clone() for name, _ in self.layout.arrays}


#: Called with every `Standing`.
Observer = Callable[[Standing], object]


@runtime_checkable
class LastingObserver(Protocol):
    """An observer that holds something open while a run is carried out, such as `TensorBoard`."""

    def observing(self) -> AbstractContextManager[Observer]:
        """What is called, while the context lasts."""
        ...


def is_public(column: str) -> bool:
    """Whether a column of the metrics table is public or noised.

    >>> is_public("loss"), is_public("federated_loss_not_private")
    (True, False)
    """
    return not column.endswith("_not_private")
