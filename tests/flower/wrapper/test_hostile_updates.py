"""A reply that is wrong in any way is the zero vector of its user, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp.strategy import FedAvg
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


def replacing(name: str, array: Array) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        reply.content["arrays"][name] = array  # type: ignore[index]
        return reply

    return change


def _without(reply: Message) -> Message:
    del reply.content["arrays"]["head"]  # type: ignore[attr-defined]
    return reply


def _second(reply: Message) -> Message:
    reply.content["more"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
    return reply


def _raise(reply: Message) -> Message:
    raise OSError("no disk")


HOSTILE: dict[str, Callable[[Message], Message]] = {
    "raises": _raise,
    "misses an array": _without,
    "two records": _second,
    "NaN": replacing("head", Array(np.full(5, np.nan, np.float32))),
    "infinity": replacing("head", Array(np.full(5, np.inf, np.float32))),
    "doubles": replacing("head", Array(np.zeros(5, np.float64))),
    "long": replacing("head", Array(np.zeros(6, np.float32))),
    "objects": replacing("head", Array("float32", (5,), "numpy.ndarray", b"\x80\x04K\x01.")),
    "another type inside": replacing(
        "head", Array("float32", (5,), "numpy.ndarray", Array(np.zeros(5, np.int32)).data)
    ),
    "another shape inside": replacing(
        "head", Array("float32", (5,), "numpy.ndarray", Array(np.zeros((5, 1), np.float32)).data)
    ),
    "much data": replacing("head", Array("float32", (5,), "numpy.ndarray", b"x" * 10**6)),
    "another format": replacing("head", Array("float32", (5,), "torch.Tensor", b"x" * 148)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_is_a_zero_vector_of_its_user_alone(kind: str, tmp_path: Path) -> None:
    victim = 5

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        return HOSTILE[kind](reply) if int(context.node_config["partition-id"]) == victim else reply

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
