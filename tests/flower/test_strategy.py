"""fedmf's own clients under hostile, dead and late nodes: the run survives, the sum stays right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from support.ledgers import participations
from support.small_runs import (
    client_for,
    linear_task,
    reply_with,
    run_small,
    schedule_of,
    seeing,
    small_run,
    tampering,
)

import fedmf
from fedmf.flower import InProcessGrid
from fedmf.flower.clients import run_on_grid
from fedmf.flower.messages import read_request
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundReport
from fedmf.runs.run import Run
from fedmf.runs.session import Session

pytestmark = pytest.mark.usefixtures("own_time")

DIMENSION = 50
TASK = linear_task(24, DIMENSION)
ROWS = small_run(TASK, messages="per-user", server_momentum=0.0, server_learning_rate=1.0)
ONE_EACH = small_run(TASK, messages="one-user", server_momentum=0.0, server_learning_rate=1.0)
Change = Callable[[Message, Message], Message]


def _raise(request: Message, reply: Message) -> Message:
    raise RuntimeError("disk on fire")


def _rows(values: np.ndarray) -> Change:
    return lambda request, reply: reply_with(request, reply, array=("rows", values))


def _says(**config: object) -> Change:
    return lambda request, reply: reply_with(request, reply, **config)


#: Of a message to one user, "u003".
BAD_USER_REPLIES: dict[str, Change] = {
    "raises": _raise,
    "too short": _rows(np.zeros((1, DIMENSION - 1), np.float32)),
    "flat": _rows(np.zeros(DIMENSION, np.float32)),
    "integers": _rows(np.ones((1, DIMENSION), np.int64)),
    "NaN": _rows(np.full((1, DIMENSION), np.nan, np.float32)),
    "a replay": lambda q, r: reply_with(
        q, r, round=int(q.content.config_records["config"]["round"]) - 1
    ),
    "another user": _says(users=["u999"]),
    "another of the cohort": _says(users=["u010"]),
    "two users": _says(users=["u000", "u001"]),
    "nobody": _says(users=[]),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The model of the run in which nobody misbehaves."""
    return run_small(tmp_path_factory.mktemp("good") / "run", ONE_EACH)


def named(request: Message) -> list[str]:
    return list(request.content.config_records["config"]["users"])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BAD_USER_REPLIES)
def test_a_bad_reply_is_its_users_zero_and_uses_up_the_noise_row(
    kind: str, good: np.ndarray, tmp_path: Path
) -> None:
    victim = "u003"
    reports = list[RoundReport]()

    def tamper(request: Message, reply: Message) -> Message:
        return BAD_USER_REPLIES[kind](request, reply) if named(request) == [victim] else reply

    bad = run_small(
        tmp_path / "bad", ONE_EACH, lambda s: tampering(client_for(s), tamper), reports.append
    )
    with Ledger.open(tmp_path / "bad" / "ledger.sqlite", read_only=True) as ledger:
        taken = participations(ledger)
        assert ledger.released == 12
    assert sorted(t for t, user in taken if user == victim) == [
        t for t in range(12) if 3 in schedule_of(ONE_EACH).cohort(t)
    ]
    failures = [failure for report in reports for failure in report.failures]
    assert [(failure.user, failure.stage) for failure in failures] == 3 * [(victim, "reply")]
    # All noise rows are the same as in the good run, so exactly the victim's clipped updates are
    # missing.
    x = -TASK.dataset.features[3].numpy() * ONE_EACH.client.learning_rate
    missing = (
        3 * x / np.linalg.norm(x) * ONE_EACH.privacy.clip_norm / ONE_EACH.cohorts.users_per_round
    )
    np.testing.assert_allclose(good - bad, missing, atol=1e-5)  # float32 models of size about 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_of_many_rows_a_bad_one_is_one_users_zero(value: float, tmp_path: Path) -> None:
    """The bits are those of the run in which it is zeros."""

    def change(value: float) -> Change:
        def spoiling(request: Message, reply: Message) -> Message:
            rows = reply.content.array_records["arrays"]["rows"].numpy().copy()
            if "u003" in named(request):
                rows[named(request).index("u003")] = value
            return _rows(rows)(request, reply)

        return spoiling

    reports: list[RoundReport] = []
    models = [
        run_small(
            tmp_path / f"{x}",
            ROWS,
            lambda s, x=x: tampering(client_for(s), change(x)),
            reports.append,
        )
        for x in (0.0, value)
    ]
    assert np.array_equal(*models)
    assert [report.present for report in reports] == [6] * 24
    assert [failure.user for report in reports for failure in report.failures] == ["u003"] * 3


BAD_SLICES: dict[str, Change] = {
    "raises": _raise,
    "inflated": lambda q, r: reply_with(q, r, array=("sum", np.full(DIMENSION, 2**45, np.int64))),
    "floats": lambda q, r: reply_with(q, r, array=("sum", np.zeros(DIMENSION, np.float64))),
    "stranger": _says(users=["u999"]),
    "listed twice": _says(users=["u003", "u003"]),
    "another round": _says(round=99),
}


@pytest.mark.parametrize("kind", BAD_SLICES)
def test_a_bad_slice_is_refused_as_a_whole(kind: str, tmp_path: Path) -> None:
    def tamper(request: Message, reply: Message) -> Message:
        return (
            BAD_SLICES[kind](request, reply)
            if reply.metadata.src_node_id == 2**63 + 1001
            else reply
        )

    reports: list[RoundReport] = []
    run = small_run(TASK, workers=2)
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper), reports.append)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert {user for _, user in participations(ledger)} == set(TASK.dataset.user_ids)
        assert ledger.released == 12
    for report in reports:
        failed = {failure.user for failure in report.failures}
        assert failed
        assert failed <= set(TASK.dataset.user_ids[1::2])
        assert report.present == 6


def test_replies_over_the_clip_norm_are_clipped_again_by_the_server(tmp_path: Path) -> None:
    run = small_run(
        TASK, messages="per-user", private=False, server_momentum=0.0, server_learning_rate=1.0
    )

    def tamper(request: Message, reply: Message) -> Message:
        huge = np.zeros((len(named(request)), DIMENSION), np.float32)
        huge[:, 0] = 1e30
        return _rows(huge)(request, reply)

    model = run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper))
    expected = np.zeros(DIMENSION)
    expected[0] = 12 * run.privacy.clip_norm
    np.testing.assert_allclose(model, expected, rtol=1e-6)


def test_training_in_place_does_not_reach_the_servers_model(tmp_path: Path) -> None:
    """The raw updates of users would enter the next model without clipping or noise."""

    def vandal(session: Session) -> ClientApp:
        inner = client_for(session)
        outer = ClientApp()

        @outer.train()
        def train(message: Message, context: Context) -> Message:
            read_request(message).parameters.add_(1e6)
            return inner(message, context)

        outer.query()(inner)
        return outer

    run = small_run(TASK, workers=2)
    honest = run_small(tmp_path / "honest", run)
    assert np.array_equal(run_small(tmp_path / "vandal", run, vandal), honest)


class Spoilt(InProcessGrid):
    """A grid whose replies to training pass through ``spoil``."""

    def __init__(
        self, client: ClientApp, spoil: Callable[[Iterator[Message]], Iterator[Message]]
    ) -> None:
        super().__init__(client)
        self.spoil = spoil

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        return self.spoil(super().pull_messages(message_ids))


def carried_out(
    run: Run, path: Path, spoil: Callable[[Iterator[Message]], Iterator[Message]]
) -> list[int]:
    """How many were present in each round."""
    reports: list[RoundReport] = []
    with fedmf.start(run, path) as session:
        run_on_grid(session, Spoilt(client_for(session), spoil), seeing(reports.append))
        assert session.server.t == 12
    return [report.present for report in reports]


def echo(replies: Iterator[Message]) -> Iterator[Message]:
    for reply in replies:
        yield from (reply, reply)


def test_a_user_that_replies_twice_counts_once(tmp_path: Path) -> None:
    carried_out(ROWS, tmp_path / "echo", echo)
    same = run_small(tmp_path / "plain", ROWS)
    with fedmf.resume(ROWS, tmp_path / "echo") as session:
        assert np.array_equal(session.server.parameters.numpy(), same)


@pytest.mark.parametrize("silent", [0, 2])
def test_late_replies_never_enter_a_later_round(  # type: ignore[no-untyped-def]
    silent: int, tmp_path: Path, own_time
) -> None:
    """Replies to round 2 come in round 3; while all of them are late, the round is asked again, for
    free.
    """
    run = small_run(TASK, messages="one-user", private=False, round_timeout=0.3)
    run = dataclasses.replace(
        run, execution=dataclasses.replace(run.execution, min_reply_share=0.1)
    )
    late = list[Message]()
    attempts = [silent]

    def hold(replies: Iterator[Message]) -> Iterator[Message]:
        first = attempts[0] == 0
        for reply in replies:
            if (
                reply.metadata.message_type == "train"
                and reply.metadata.group_id == "2"
                and not first
            ):
                late.append(reply)
                continue
            first = False
            if reply.metadata.group_id == "3":
                yield from late
            yield reply
        attempts[0] = max(0, attempts[0] - bool(late))

    assert carried_out(run, tmp_path / "late", hold) == [6, 1] + [6] * 10
    with Ledger.open(tmp_path / "late" / "ledger.sqlite", read_only=True) as ledger:
        assert len([user for t, user in participations(ledger) if t == 1]) == 1
        assert all(len(commit.keys) for commit in ledger.commits())
    assert silent or own_time.now == pytest.approx(0.3)


def test_a_run_to_which_nobody_replies_any_more_goes_on_to_its_horizon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping would tell, by the number of rounds and without noise, that nobody was there. The
    sum is the same as if the zero vector had come from each.
    """
    monkeypatch.setattr("fedmf.flower.clients.PAUSES", (0.01, 0.01))
    run = small_run(TASK, messages="per-user", round_timeout=0.05)

    def heard(reply: Message) -> bool:
        return reply.metadata.message_type != "train" or int(reply.metadata.group_id) < 4

    assert (
        carried_out(run, tmp_path / "silent", lambda all: filter(heard, all)) == [6] * 3 + [0] * 9
    )
    for number in range(1, 13):
        said = f"round {number}: too few replies arrived in 3 attempts"
        assert (said in caplog.text) == (number >= 4)

    def raising(request: Message, reply: Message) -> Message:
        return reply if int(request.metadata.group_id) < 4 else _raise(request, reply)

    same = run_small(tmp_path / "raising", run, lambda s: tampering(client_for(s), raising))
    with fedmf.resume(run, tmp_path / "silent") as session:
        assert np.array_equal(session.server.parameters.numpy(), same)
    failures = tmp_path / "raising" / "failures.jsonl"
    rows = [json.loads(line) for line in failures.read_text().splitlines()]
    assert failures.stat().st_mode & 0o777 == 0o600
    assert len(rows) == 9 * 6
    assert "client error 2" in rows[0]["reason"]
