"""From users' own rows to their noisy mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from fedmf.functions import function_of
from fedmf.noise import Domain
from fedmf.parts.noised_sum import NoisedSum
from fedmf.parts.part import LivePart, Stage
from fedmf.training import FixedPointSum, RowStatistic


@dataclass(frozen=True)
class UsersOwn(RowStatistic):
    """A function of a user's clipped update, found by its name in whatever process sums.

    Attributes:
        function: ``package.module:function``.
    """

    function: str

    def of(self, update: Tensor) -> Tensor:
        """See `RowStatistic.of`."""
        return _found(self.function)(update)


@cache
def _found(name: str) -> Callable[..., Tensor]:
    """The function of a name, searched once in a process."""
    return function_of("the own statistic", name)


class OwnRelease(LivePart):
    """(Σ_u s_u + noise)/m of every round: see `NoisedSum`.

    Args:
        name: of the part.
        columns: names of its entries.
        statistic: s, clipped to norm c.
        own_factor: 1/b.
        stage: of the run.
    """

    def __init__(
        self, name: str, columns: Sequence[str], statistic: RowStatistic, own_factor: float, stage: Stage
    ) -> None:
        self.name, self._columns, self._size = name, tuple(columns), stage.size
        self._sum = NoisedSum(statistic, stage, own_factor, Domain.of_part(name))
        self.state: Mapping[str, Any] = {"means": [0.0] * len(self._columns)}

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """See `LivePart.after`."""
        return {"means": [entry / self._size for entry in self._sum.released(t, total)]}

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """See `LivePart.state_dict`."""
        return {**state, "noise": self._sum.noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """See `LivePart.load_state`."""
        self._sum.load_state(saved["noise"])
        self.state = {"means": list(saved["means"])}

    @property
    def beforehand(self) -> str:
        """See `LivePart.beforehand`."""
        return "own statistic: users are trained without compiled programs, which give no update of one user"

    def noted(self) -> Mapping[str, float]:
        """See `LivePart.noted`."""
        return dict(zip(self._columns, self.state["means"], strict=True))
