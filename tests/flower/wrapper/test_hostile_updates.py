"""A reply that is wrong in any way is the zero vector of its user, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg
from support.hostile_replies import USELESS
from support.wrapped_apps import (
    DIMENSION,
    USERS,
    Next,
    adding,
    dense_c,
    flat,
    model,
    noisy_means,
    private,
    update_of,
)

from fedmf.flower import InProcessGrid

KINDS = ["raises", "exits", "misses an array", "two records", "NaN", "beyond float32", "huge shape"]


@pytest.mark.parametrize("kind", [*KINDS, "another type inside"])
def test_a_hostile_reply_is_a_zero_vector_of_its_user_alone(kind: str, tmp_path: Path) -> None:
    victim = 5

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        return USELESS[kind](reply) if int(context.node_config["partition-id"]) == victim else reply

    strategy = private(FedAvg(), tmp_path / "run")
    app = adding(lambda user, _: update_of(user), mods=[tamper])
    result = strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=model())
    assert result.arrays is not None
    statement = strategy.statement().to_dict()
    expected = flat(model()) + noisy_means(
        lambda user: 0.0 * update_of(user) if user == victim else update_of(user),
        float(statement["noise_std"]),
        dense_c(statement),
        DIMENSION,
    ).sum(axis=0)
    np.testing.assert_allclose(flat(result.arrays), expected, atol=2e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    assert [(row["user"], row["stage"]) for row in rows] == 2 * [("user-05", "reply")]
    assert statement["users_participated"] == USERS
