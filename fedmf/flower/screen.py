"""What a server app says through Flower's own logger: the plan, and one line a round."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting.rounding import at_least, at_most
from fedmf.runs.cost_estimate import NoiseAndSignal
from fedmf.runs.session import Session

_log: Final = logging.getLogger("flwr")


def say(line: str) -> None:
    """A line for the operator."""
    _log.info("fedmf: %s", line)


def warn(line: str) -> None:
    """A line that asks for something."""
    _log.warning("fedmf: %s", line)


def say_plan(session: Session) -> None:
    """Mechanism, noise, what cannot be told later, and where records are."""
    plan = session.plan
    server = session.server
    if session.standing:
        say(session.standing)
    epsilon = plan.epsilon_after(server.horizon)
    budget = f"epsilon {at_least(epsilon, 4)}" if math.isfinite(epsilon) else "no privacy"
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
    """One line about a released round: figures that are public or were released with noise.

    Args:
        number: of the round, from 1 on.
        horizon: n.
        metrics: as `RoundRecord` has them.
    """
    shown = dict(metrics)
    epsilon = shown.pop("epsilon", None)
    figures = [f"epsilon {at_least(epsilon, 4)}"] if epsilon is not None else []
    figures += [
        f"{name} {value:.4g}" for name, value in shown.items() if isinstance(value, int | float)
    ]
    say(", ".join([f"round {number}/{horizon}", *figures]))
