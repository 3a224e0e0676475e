"""Observers and a stopping rule around a session, whatever engine carries it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedmf.errors import one_line
from fedmf.runs.observing.observer import LastingObserver, Observer, ObserverError, Standing
from fedmf.runs.observing.stand_ins import LocalCheck
from fedmf.runs.observing.stopping import StopRule, check_rule, reason_to_stop
from fedmf.statements import PrivacyStatement

if TYPE_CHECKING:
    from fedmf.runs.session import Session


_log = logging.getLogger("fedmf")


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run leaves that was carried out.

    Args:
        path: its directory.
        parameters: the released model, shape (d,), in the order of the module's parameters.
        metrics: by released rounds.
        statement: of its privacy.
        stopped: why it ended before its horizon; empty if it did not.
    """

    path: Path
    parameters: Tensor
    metrics: Mapping[int, Mapping[str, Any]]
    statement: PrivacyStatement
    stopped: str = ""


class _EarlyStop(Exception):
    """A rule ends the run where it stands."""


@contextmanager
def observed(
    session: Session, observers: Sequence[Observer | LastingObserver]
) -> Iterator[Callable[[], None]]:
    """While a session is carried out: shows every observer where it stands, now and whenever it is called.

    Args:
        session: just opened.
        observers: called in their order.

    Raises:
        ObserverError: an observer raised, here or in a call; what was released is kept.
    """
    with ExitStack() as entered:
        calls = [
            (
                _name(each),
                entered.enter_context(each.observing()) if isinstance(each, LastingObserver) else each,
            )
            for each in observers
        ]

        def show(opening: bool = False) -> None:
            standing = _standing(session, opening)
            for name, call in calls:
                try:
                    call(standing)
                except Exception as error:  # an observer's own code may raise anything
                    said = one_line(f"{type(error).__name__}: {error}")
                    raise ObserverError(
                        f"observer {name} raised after round {standing.rounds} of {standing.horizon} "
                        f"({said}). The round is kept: mend the observer and go on with the run."
                    ) from error

        if not session.server.lost:  # else the model at hand is an earlier one than that of the last round
            show(opening=True)
        yield show


def _name(observer: object) -> str:
    return getattr(observer, "__qualname__", type(observer).__qualname__)


def _standing(session: Session, opening: bool) -> Standing:
    server = session.server
    return Standing(
        server.t,
        server.horizon,
        opening,
        MappingProxyType(session.metrics),
        session.directory.path,
        server.parameters,
        session.directory.header.arrays,
    )


def carried_out(
    session: Session,
    engine: Callable[[Session, Callable[[Any, Any], None]], None],
    observers: Sequence[Observer | LastingObserver] = (),
    stop: StopRule | None = None,
) -> RunResult:
    """Carry a session out and say what it leaves.

    Args:
        session: just opened.
        engine: takes a session to its horizon and calls back after every round.
        observers: see `observed`.
        stop: when to end before the horizon.

    Raises:
        ConfigError: a rule that may not be used with this run; nothing is released then.
        ObserverError: an observer raised.

    Logs a warning if local training diverges (`LocalCheck`), when that is seen first and at the end.
    """
    stopped, check = "", LocalCheck(session)
    if stop is not None:
        check_rule(stop, session)
    _warn(check.look())
    with observed(session, observers) as show:

        def after_round(_report: Any, _row: Any) -> None:
            show()
            _warn(check.look())
            ask()

        def ask() -> None:
            t = session.server.t
            if stop is None or t not in session.metrics or t >= session.plan.allowed_rounds:
                return
            if (reason := reason_to_stop(stop, session)) is not None:
                raise _EarlyStop(reason)

        try:
            ask()
            engine(session, after_round)
        except _EarlyStop as reason:
            stopped = f"stopped after round {session.server.t} of {session.server.horizon}: {reason}"
            session.write_reports()
        session.draw()
    _warn(check.verdict())
    parameters = session.server.parameters.detach().clone()
    return RunResult(session.directory.path, parameters, session.metrics, session.statement(), stopped)


def _warn(line: str | None) -> None:
    if line is not None:
        _log.warning("%s", line)
