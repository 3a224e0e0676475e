"""Carrying a session out, with a callback after each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedmf.statements import PrivacyStatement

if TYPE_CHECKING:
    from fedmf.runs.session import Session


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What is known after a round: released and recorded values, and nothing else about users.

    Args:
        rounds: how many rounds are released.
        horizon: n.
        metrics: the row of the metrics table with ε so far; empty if the model was not evaluated. Figures of
            users' own examples without noise are left out, unless the run has no privacy.
        released: the model, flat.
        arrays: name and shape of each trained tensor, in the order of the flat model.
    """

    rounds: int
    horizon: int
    metrics: Mapping[str, float]
    released: Tensor
    arrays: Sequence[tuple[str, tuple[int, ...]]]

    def parameters(self) -> Tensor:
        """A copy of the released model, shape (d,)."""
        return self.released.detach().clone()

    def model(self) -> dict[str, Tensor]:
        """A copy of it by the names of the trained parameters, float32, as `load_model` gives them."""
        flat = self.released.detach().to("cpu", torch.float32)
        parts = flat.split([math.prod(shape) for _, shape in self.arrays])
        named = zip(self.arrays, parts, strict=True)
        return {name: part.reshape(shape).clone() for (name, shape), part in named}


#: Called after each committed round; True ends the run there.
OnRound = Callable[[RoundRecord], bool | None]


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run leaves that was carried out.

    Args:
        path: its directory.
        parameters: the released model, shape (d,), in the order of the module's parameters.
        metrics: by released rounds.
        statement: of its privacy.
        stopped: whether a callback ended it.
    """

    path: Path
    parameters: Tensor
    metrics: Mapping[int, Mapping[str, Any]]
    statement: PrivacyStatement
    stopped: bool = False


class _EarlyStop(Exception):
    """The callback ends the run where it stands."""


def carried_out(
    session: Session,
    engine: Callable[[Session, Callable[[Any, Any], None]], None],
    on_round: OnRound | None = None,
) -> RunResult:
    """Carry a session out and say what it leaves.

    A run that is continued begins with a call for the round where it stands, which an earlier process may
    have made. If the callback raises, the round is kept, and the run can be continued.

    Args:
        session: just opened.
        engine: takes a session to its horizon and calls back after every round.
        on_round: see `OnRound`.

    Guarantees:
        A callback that decides by its record alone makes a post-processing of what was released, so the ε of
        all n rounds holds for when it stops.
    """

    def after_round(_report: Any = None, _row: Any = None) -> None:
        if on_round is not None and on_round(_record(session)):
            raise _EarlyStop

    stopped = False
    try:
        if session.server.t and not session.server.lost:
            after_round()
        engine(session, after_round)
    except _EarlyStop:
        stopped = True
        session.write_reports()
    session.draw()
    parameters = session.server.parameters.detach().clone()
    return RunResult(session.directory.path, parameters, session.metrics, session.statement(), stopped)


def _record(session: Session) -> RoundRecord:
    server, private = session.server, session.run.is_private
    row = session.metrics.get(server.t, {})
    return RoundRecord(
        server.t,
        server.horizon,
        {
            name: value
            for name, value in row.items()
            if value is not None and not (private and name.endswith("_not_private"))
        },
        server.parameters,
        session.directory.header.arrays,
    )
