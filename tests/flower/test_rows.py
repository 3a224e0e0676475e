"""Several users a message: each row is checked and clipped alone, and has the bits of one sent alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from support.small_runs import (
    client_for,
    linear_task,
    reply_with,
    run_small,
    small_run,
    tampering,
)

from fedmf.flower.compat import claim_task_identity
from fedmf.flower.messages import answer_reply
from fedmf.flower.strategy import OwnClients
from fedmf.runs import Execution, Reply, RoundReport
from fedmf.training import FixedPointSum

D, CLIP = 30, 0.5
USERS = tuple(f"u{place:03d}" for place in range(7))
TASK = linear_task(24, 50)
Change = Callable[[Message, Message], Message]


def block(seed: int = 0) -> torch.Tensor:
    """Rows below, at and above the clip norm."""
    rows = torch.randn(len(USERS), D, generator=torch.Generator().manual_seed(seed))
    return rows * torch.tensor([0.01, 0.1, 1.0, 1e20, 0.0, 1e-20, 3.0])[:, None]


def alone(row: torch.Tensor) -> torch.Tensor:
    total = FixedPointSum(D, CLIP)
    total.add_updates(row[None])
    return total.fixed_point


class OneNode:
    """Node 5 serves everybody."""

    def nodes_of(self, users: np.ndarray) -> list[int]:
        return [5] * users.size


def asked(users: tuple[str, ...] = USERS) -> tuple[OwnClients, Message]:
    """Clients asked by a message of round 4 to one node, and that message as a grid sends it."""
    claim_task_identity()
    server = SimpleNamespace(
        dimension=D, parameters=torch.zeros(D), clip_norm=CLIP, new_sum=lambda: FixedPointSum(D, CLIP)
    )
    session = SimpleNamespace(server=server, run=SimpleNamespace(execution=Execution(messages="per-user")))
    clients = OwnClients(session, OneNode())  # type: ignore[arg-type]
    (message,) = clients.prepare(4, dict(enumerate(users)))
    message.metadata.__dict__["_message_id"] = "m"
    return clients, message


def zeros(clients: OwnClients, reply: Message, total: FixedPointSum) -> tuple[str, ...]:
    """Who counts as zero of a reply."""
    return tuple(failure.user for failure in clients.reply(reply).add_to(total))


def in_bytes(reply: Message) -> Message:
    rows = reply.content.array_records["arrays"]["rows"].numpy()
    reply.content["arrays"] = ArrayRecord({"rows": Array(rows)})
    return reply


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_its_users_zero_vector(value: float | None, as_bytes: bool) -> None:
    rows, bad = block(), 2
    if value is not None:
        rows[bad, 11] = value
    one, message = asked()
    reply = answer_reply(message, 3, Reply(USERS, rows))
    total = FixedPointSum(D, CLIP)
    lost = zeros(one, in_bytes(reply), total)
    counted = [place for place in range(len(USERS)) if value is None or place != bad]
    assert torch.equal(total.fixed_point, torch.stack([alone(rows[place]) for place in counted]).sum(0))
    assert list(lost) == ([] if value is None else [USERS[bad]])
    assert total.users == len(USERS)


def test_every_row_is_clipped_again() -> None:
    one, message = asked()
    rows = torch.full((len(USERS), D), 1e30)
    total = FixedPointSum(D, CLIP)
    assert not zeros(one, answer_reply(message, 3, Reply(USERS, rows)), total)
    norm = float(torch.linalg.vector_norm(total.total()))
    assert len(USERS) * CLIP * (1 - 1e-9) <= norm <= len(USERS) * CLIP


WHOLE: dict[str, Any] = {
    "a row less": lambda rows: (USERS, rows[1:]),
    "a row more": lambda rows: (USERS, torch.cat([rows, rows[:1]])),
    "flat": lambda rows: (USERS, rows.reshape(-1)),
    "transposed": lambda rows: (USERS, rows.T.contiguous()),
    "short rows": lambda rows: (USERS, rows[:, 1:].contiguous()),
    "float16": lambda rows: (USERS, rows.half()),
    "integers": lambda rows: (USERS, rows.to(torch.int32)),
    "users swapped": lambda rows: ((USERS[1], USERS[0], *USERS[2:]), rows),
    "a user twice": lambda rows: ((USERS[0], *USERS[:-1]), rows),
    "a user and a row less": lambda rows: (USERS[1:], rows[1:]),
    "a user and a row more": lambda rows: ((*USERS, "u999"), torch.cat([rows, rows[:1]])),
}


def test_rows_of_float64_are_taken_and_one_beyond_float32_is_zero() -> None:
    one, message = asked()
    wide, total, plain = block().double(), FixedPointSum(D, CLIP), FixedPointSum(D, CLIP)
    wide[2, 0] = 1e300
    reply = in_bytes(answer_reply(message, 3, Reply(USERS, wide)))
    assert zeros(one, reply, total) == (USERS[2],)
    plain.add_updates(torch.cat([block()[:2], block()[3:]]))
    assert total.fixed_point.equal(plain.fixed_point)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_malformed_reply_is_zeros_for_all_its_users(kind: str) -> None:
    users, rows = WHOLE[kind](block())
    one, message = asked()
    reply = answer_reply(message, 3, Reply(users, rows))
    total = FixedPointSum(D, CLIP)
    assert zeros(one, in_bytes(reply), total) == USERS
    assert not total.fixed_point.any()
    assert total.users == len(USERS)


def test_a_reply_counts_once_and_for_the_users_its_message_asked() -> None:
    one, message = asked()
    reply = answer_reply(message, 3, Reply(USERS, block()))
    assert one.reply(reply).users == USERS
    assert one.reply(reply).users == ()


def test_the_bytes_that_a_reply_may_take_follow_its_users() -> None:
    one, _ = asked()
    assert one.bytes_of((5, USERS[:3])) == 8 * D * 3


KEYS = {"mechanism": "bisr", "bands": 4, "local_batch_size": 16, "messages": "per-user"}


@pytest.mark.parametrize("optimizer", ["sgd", "jme-adam"])
def test_the_bits_do_not_depend_on_how_many_users_a_message_asks(optimizer: str, tmp_path: Path) -> None:
    models = []
    cases = [({"users_per_message": 1}, 1), ({}, 12), ({"users_per_message": 3, "workers": 3}, 3)]
    for place, (keys, most) in enumerate(cases):
        counts: list[int] = []
        run = small_run(
            **KEYS, **keys, cohort_size=12, min_separation=2, server_optimizer=optimizer, rounds=6
        )
        models.append(
            run_small(tmp_path / str(place), run, lambda s, counts=counts: counting(client_for(s), counts))
        )
        assert max(counts) == most
    assert np.array_equal(models[0], models[1])
    assert np.array_equal(models[0], models[2])


def counting(client: ClientApp, counts: list[int]) -> ClientApp:
    def note(request: Message, reply: Message) -> Message:
        counts.append(len(request.content.config_records["config"]["users"]))  # type: ignore[arg-type]
        return reply

    return tampering(client, note)


def spoiling(victim: str, value: float) -> Change:
    """The victim's row is made of one number."""

    def change(request: Message, reply: Message) -> Message:
        users = list(request.content.config_records["config"]["users"])  # type: ignore[arg-type]
        rows = reply.content.array_records["arrays"]["rows"].numpy()
        if victim in users:
            rows[users.index(victim)] = value
        return reply_with(request, reply, array=("rows", rows))

    return change


def test_one_users_row_changes_that_users_contribution_alone(tmp_path: Path) -> None:
    """A row of NaN leaves the bits of the run in which it is zeros, and everybody is present."""
    victim, models, failures = "u003", list[np.ndarray](), list[list[tuple[str, str]]]()
    for place, value in enumerate((0.0, float("nan"), float("inf"))):
        reports: list[RoundReport] = []
        run = small_run(TASK, messages="per-user")
        change = spoiling(victim, value)
        models.append(
            run_small(
                tmp_path / str(place),
                run,
                lambda s, change=change: tampering(client_for(s), change),
                reports.append,
            )
        )
        assert [report.present for report in reports] == [6] * 12
        failures.append([(f.user, f.stage) for report in reports for f in report.failures])
    assert np.array_equal(models[0], models[1])
    assert np.array_equal(models[0], models[2])
    assert failures == [[], [(victim, "reply")] * 3, [(victim, "reply")] * 3]
