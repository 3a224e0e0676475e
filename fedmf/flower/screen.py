"""Lines for the operator of a server app through Flower's logger: the plan, and one per round."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fedmf.accounting.rounding import at_least, at_most
from fedmf.runs.cost_estimate import NoiseAndSignal
from fedmf.runs.session import Session

_log: Final = logging.getLogger("flwr")
#: Modules of Flower's simulation engine that log the errors of clients.
_ENGINE: Final = ("vce_api", "raybackend", "ray_client_proxy", "ray_actor")


@contextmanager
def without_client_errors() -> Iterator[None]:
    """Keep errors of clients, which Flower's simulation engine logs, from the screen."""
    _log.addFilter(_is_no_client_error)
    try:
        yield
    finally:
        _log.removeFilter(_is_no_client_error)


def _is_no_client_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or record.module not in _ENGINE


def say(line: str) -> None:
    """Log a line for the operator."""
    _log.info("fedmf: %s", line)


def warn(line: str) -> None:
    """Log a warning that asks the operator for a change."""
    _log.warning("fedmf: %s", line)


def say_plan(session: Session) -> None:
    """Log the mechanism, the noise and the run directory before the first round."""
    plan = session.plan
    server = session.server
    if session.standing:
        say(session.standing)
    epsilon = plan.epsilon_after(server.horizon)
    budget = "no privacy"
    if math.isfinite(epsilon):
        budget = f"epsilon {at_least(epsilon, 4)}"
    if session.run.privacy.noise_seed is not None:
        budget = f"simulation only, no privacy (public noise seed); with a secret key {budget}"
    say(
        f"{plan.mechanism.name}, {budget} after {server.horizon} rounds, noise multiplier "
        f"{at_most(plan.noise_multiplier, 4)}; run directory {session.directory.path}"
    )
    if plan.noise_std > 0:
        against = NoiseAndSignal(plan, server.dimension)
        say(f"noise: {against.words}")
        if against.warning is not None:
            warn(against.warning)


def say_round(number: int, horizon: int, metrics: Mapping[str, Any]) -> None:
    """Log a line about a released round, with figures that are public or carry noise.

    Args:
        number: the number of the round, from 1.
        horizon: n.
        metrics: the metrics of `RoundRecord`.
    """
    others = dict(metrics)
    epsilon = others.pop("epsilon", None)
    figures = [f"round {number}/{horizon}"]
    if epsilon is not None:
        figures.append(f"epsilon {at_least(epsilon, 4)}")
    for name, value in others.items():
        if isinstance(value, int | float):
            figures.append(f"{name} {value:.4g}")
    say(", ".join(figures))
