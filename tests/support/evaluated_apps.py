"""Wrapped apps whose clients report metrics that are released with noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import FedAvg

from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.runs import PrivateEvaluation
from support.wrapped_apps import COHORT, ROUNDS, USERS, adding, model, private, update_of

EPSILON, DELTA, SHARE = 8.0, 1e-5, 0.2
RANGES = {"eval_loss": (0.0, 3.0), "eval_acc": (0.0, 1.0)}
EVERY_ROUND = PrivateEvaluation(share=SHARE, every=1, size=COHORT)


def reported(user: int) -> dict[str, Any]:
    """What an ordinary client reports: some losses beyond the range, numbers of examples, more metrics."""
    return {
        "eval_loss": 0.4 * user,
        "eval_acc": user / USERS,
        "num-examples": 10 ** (user % 4),
        "secret": 1.0 * user,
    }


def evaluated(path: Path, asked: PrivateEvaluation = EVERY_ROUND, **keys: Any) -> CorrelatedNoise:
    values = {"client_evaluation": "private", "evaluation_metrics": RANGES, "private_evaluation": asked}
    return private(keys.pop("inner", FedAvg()), path, **{**values, **keys})


def carried_out(
    strategy: CorrelatedNoise, says: Callable[[int], dict[str, Any]] = reported, **keys: Any
) -> dict[int, dict[str, Any]]:
    """Released metrics by round."""
    app = adding(lambda user, _: update_of(user), says, **keys)
    result = strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=model())
    return {t: dict(metrics) for t, metrics in result.evaluate_metrics_clientapp.items()}


def cyclic(e: int, size: int) -> list[int]:
    """Whom evaluation e asks of the users in turn, in the public order of seed 0."""
    order = EVERY_ROUND.cohorts(ROUNDS, USERS).schedule(
        USERS, EVERY_ROUND.cohorts(ROUNDS, USERS).participation(USERS), secret_seed=0
    )
    assert size == COHORT
    return [int(user) for user in order.cohort(e)]
