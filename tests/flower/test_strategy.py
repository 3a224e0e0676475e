"""The server strategy under hostile, dead and late clients: the run survives, the sum stays right."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
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
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.strategy import CorrelatedNoiseStrategy, run_on_grid
from fedmf.records.ledger import Ledger
from fedmf.runs import RoundReport

pytestmark = pytest.mark.usefixtures("own_time")

DIMENSION = 50
TASK = linear_task(24, DIMENSION)
ONE_EACH = small_run(
    TASK,
    messages="per-user",
    users_per_message=1,
    server_momentum=0.0,
    server_learning_rate=1.0,
)


def _raise(request: Message, reply: Message) -> Message:
    raise RuntimeError("disk on fire")


BAD_USER_REPLIES = {
    "raises": _raise,
    "too short": lambda q, r: reply_with(q, r, array=("rows", np.zeros((1, DIMENSION - 1), np.float32))),
    "flat": lambda q, r: reply_with(q, r, array=("rows", np.zeros(DIMENSION, np.float32))),
    "integers": lambda q, r: reply_with(q, r, array=("rows", np.ones((1, DIMENSION), np.int64))),
    "NaN": lambda q, r: reply_with(q, r, array=("rows", np.full((1, DIMENSION), np.nan, np.float32))),
    "infinity": lambda q, r: reply_with(q, r, array=("rows", np.full((1, DIMENSION), np.inf, np.float32))),
    "complex": lambda q, r: reply_with(q, r, array=("rows", np.ones((1, DIMENSION), np.complex64))),
    "misnamed": lambda q, r: reply_with(q, r, array=("model", np.zeros((1, DIMENSION), np.float32))),
    "last round": lambda q, r: reply_with(q, r, round=int(q.content.config_records["config"]["round"]) - 1),
    "no round": lambda q, r: reply_with(q, r, round="now"),
    "another user": lambda q, r: reply_with(q, r, users=["u999"]),
    "two users": lambda q, r: reply_with(q, r, users=["u000", "u001"]),
    "nobody": lambda q, r: reply_with(q, r, users=[]),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The model of the run in which nobody misbehaves."""
    return run_small(tmp_path_factory.mktemp("good") / "run", ONE_EACH)


@pytest.mark.parametrize("kind", BAD_USER_REPLIES)
def test_bad_replies_of_one_user_count_as_zero_and_use_up_the_noise_row(
    kind: str, good: np.ndarray, tmp_path: Path
) -> None:
    victim, run = "u003", ONE_EACH

    def tamper(request: Message, reply: Message) -> Message:
        mine = request.content.config_records["config"]["users"] == [victim]
        return BAD_USER_REPLIES[kind](request, reply) if mine else reply

    reports: list[RoundReport] = []
    bad = run_small(
        tmp_path / "bad", run, lambda s: tampering(client_for(s), tamper), on_report=reports.append
    )
    with Ledger.open(tmp_path / "bad" / "ledger.sqlite", read_only=True) as ledger:
        taken = participations(ledger)
        assert ledger.released == run.cohorts.rounds
    assert sorted(t for t, user in taken if user == victim) == [
        t for t in range(12) if 3 in schedule_of(run).cohort(t)
    ]
    failures = [failure for report in reports for failure in report.failures]
    assert [(failure.user, failure.stage) for failure in failures] == 3 * [(victim, "reply")]
    # All noise rows are the same as in the good run, so exactly the victim's clipped updates are missing.
    x = -TASK.dataset.features[3].numpy() * run.client.learning_rate
    missing = 3 * x / np.linalg.norm(x) * run.privacy.clip_norm / run.cohorts.users_per_round
    np.testing.assert_allclose(good - bad, missing, atol=1e-5)  # float32 models of size about 1


BAD_SLICES = {
    "raises": _raise,
    "inflated": lambda q, r: reply_with(q, r, array=("sum", np.full(DIMENSION, 2**45, np.int64))),
    "floats": lambda q, r: reply_with(q, r, array=("sum", np.zeros(DIMENSION, np.float64))),
    "stranger": lambda q, r: reply_with(q, r, users=["u999"]),
    "listed twice": lambda q, r: reply_with(q, r, users=["u003", "u003"]),
    "another round": lambda q, r: reply_with(q, r, round=99),
}


@pytest.mark.parametrize("kind", BAD_SLICES)
def test_a_bad_slice_is_refused_as_a_whole(kind: str, tmp_path) -> None:
    def tamper(request: Message, reply: Message) -> Message:
        return BAD_SLICES[kind](request, reply) if reply.metadata.src_node_id == 2**63 + 1001 else reply

    reports: list[RoundReport] = []
    run = small_run(TASK, workers=2)
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper), reports.append)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        users = {user for _, user in participations(ledger)}
        assert ledger.released == run.cohorts.rounds
    assert users == set(TASK.dataset.user_ids)
    for report in reports:
        failed = {failure.user for failure in report.failures}
        assert failed
        assert failed <= set(TASK.dataset.user_ids[1::2])
        assert report.present == 6


def test_replies_over_the_clip_norm_are_clipped_again_by_the_server(tmp_path) -> None:
    run = small_run(TASK, messages="per-user", private=False, server_momentum=0.0, server_learning_rate=1.0)
    huge = np.zeros(DIMENSION, np.float32)
    huge[0] = 1e30

    def tamper(request: Message, reply: Message) -> Message:
        users = request.content.config_records["config"]["users"]
        return reply_with(request, reply, array=("rows", np.tile(huge, (len(users), 1))))  # type: ignore[arg-type]

    model = run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper))
    expected = np.zeros(DIMENSION)
    expected[0] = run.cohorts.rounds * run.privacy.clip_norm
    np.testing.assert_allclose(model, expected, rtol=1e-6)


def test_a_user_that_replies_twice_counts_once(tmp_path) -> None:
    run = small_run(TASK, messages="per-user", private=False)

    class Echo(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
            for reply in super().pull_messages(message_ids):
                yield reply
                yield reply

    with fedmf.start(run, tmp_path / "echo") as session:
        run_on_grid(session, Echo(client_for(session)))
        echoed = session.server.parameters.numpy().copy()
    assert np.array_equal(echoed, run_small(tmp_path / "plain", run))


def test_a_node_cannot_answer_for_one_of_its_users_twice(tmp_path) -> None:
    """Both its replies of a round name the same user; the one to another request counts as zeros."""

    def tamper(request: Message, reply: Message) -> Message:
        mine = request.content.config_records["config"]["users"] == ["u003"]
        return reply_with(request, reply, users=["u010"]) if mine else reply

    keys = {"schedule": "random", "min_separation": 1, "max_participations": 12}
    run = small_run(TASK, messages="per-user", users_per_message=1, **keys)
    together = [t for t in range(12) if {3, 10} <= set(schedule_of(run).cohort(t).tolist())]
    assert together
    reports: list[RoundReport] = []
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper), reports.append)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.summary().rounds == 12
    for t in together:
        assert [failure.user for failure in reports[t].failures] == ["u003"]
        assert reports[t].present == 6


class LateGrid(InProcessGrid):
    """Holds back replies of round 2, all but the first or for some attempts all, until round 3."""

    def __init__(self, client: ClientApp, silent_attempts: int) -> None:
        super().__init__(client)
        self.silent_attempts, self.late = silent_attempts, list[Message]()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        first = self.silent_attempts == 0
        for reply in super().pull_messages(message_ids):
            if reply.metadata.message_type == "train" and reply.metadata.group_id == "2" and not first:
                self.late.append(reply)
                continue
            first = False
            if reply.metadata.group_id == "3":
                yield from self.late
            yield reply
        self.silent_attempts = max(0, self.silent_attempts - bool(self.late))


def test_late_replies_are_not_waited_for_and_never_enter_a_later_round(tmp_path, own_time) -> None:
    run = small_run(TASK, messages="per-user", users_per_message=1, private=False, round_timeout=0.3)
    reports: list[RoundReport] = []
    with fedmf.start(run, tmp_path / "late") as session:
        run_on_grid(session, LateGrid(client_for(session), 0), seeing(reports.append))
        ledger = session.directory.ledger
        assert [report.present for report in reports] == [6, 1] + [6] * 10
        assert len([user for t, user in participations(ledger) if t == 1]) == 1
        assert ledger.released == 12
    assert own_time.now == pytest.approx(0.3)


@pytest.mark.usefixtures("own_time")
def test_a_round_to_which_nobody_replies_is_asked_for_again_and_spends_nothing(tmp_path) -> None:
    run = small_run(TASK, messages="per-user", users_per_message=1, round_timeout=0.2)
    reports: list[RoundReport] = []
    with fedmf.start(run, tmp_path / "late") as session:
        grid = LateGrid(client_for(session), 2)
        run_on_grid(session, grid, seeing(reports.append))
        assert len(grid.late) >= 6 + 5
        assert [report.present for report in reports] == [6, 1] + [6] * 10
        assert session.directory.ledger.summary().empty_rounds == 0


class SilentGrid(InProcessGrid):
    """Loses every reply to training from one round on."""

    def __init__(self, client: ClientApp, first: int) -> None:
        super().__init__(client)
        self.first = first

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            if reply.metadata.message_type != "train" or int(reply.metadata.group_id) < self.first:
                yield reply


@pytest.mark.usefixtures("own_time")
def test_a_run_to_which_nobody_replies_any_more_goes_on_to_its_horizon(
    tmp_path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping would tell, by the number of rounds and without noise, that nobody was there."""
    monkeypatch.setattr("fedmf.flower.strategy.RETRIES", 2)
    run = small_run(TASK, messages="per-user", round_timeout=0.05)
    reports: list[RoundReport] = []
    with fedmf.start(run, tmp_path / "run") as session:
        run_on_grid(session, SilentGrid(client_for(session), 4), seeing(reports.append))
        assert session.server.t == 12
        assert session.directory.ledger.summary().empty_rounds == 9
    assert [report.present for report in reports] == [6] * 3 + [0] * 9
    assert not any(report.failures for report in reports)
    for number in range(1, 13):
        said = f"round {number}: no reply arrived in 3 attempts; it goes on without any"
        assert (said in caplog.text) == (number >= 4)


def test_a_round_of_nobody_is_that_of_users_who_add_nothing(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is the same as if the zero vector had come from each, so the same theorem covers it."""
    monkeypatch.setattr("fedmf.flower.strategy.RETRIES", 0)
    run = small_run(TASK, messages="per-user", round_timeout=0.05)

    with fedmf.start(run, tmp_path / "silent") as session:
        run_on_grid(session, SilentGrid(client_for(session), 1))
        silent = session.server.parameters.numpy().copy()
    raising = run_small(tmp_path / "raising", run, lambda s: tampering(client_for(s), _raise))
    assert np.array_equal(silent, raising)


@pytest.mark.parametrize("messages", ["per-user", "slice"])
def test_a_run_in_which_every_reply_is_an_error_goes_on_to_its_horizon(messages: str, tmp_path) -> None:
    """Stopping would tell that nobody's update was finite; one finite user more and it would not stop."""
    run = small_run(TASK, messages=messages)
    reports: list[RoundReport] = []
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), _raise), reports.append)
    assert [report.present for report in reports] == [6] * 12
    assert all(len(report.failures) == 6 for report in reports)


def test_what_fails_is_kept_in_a_secret_file_that_is_always_there(tmp_path) -> None:
    run = small_run(TASK, messages="per-user")
    run_small(tmp_path / "plain", run)
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), _raise))
    for name in ("plain", "run"):
        assert (tmp_path / name / "failures.jsonl").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "plain" / "failures.jsonl").read_text() == ""
    rows = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    assert len(rows) == 72
    assert rows[0].keys() == {"round", "user", "stage", "reason"}
    assert "client error 2" in rows[0]["reason"]


def test_more_rounds_than_the_horizon_are_refused(tmp_path) -> None:
    run = small_run(TASK)
    with fedmf.start(run, tmp_path / "run") as session:
        strategy = CorrelatedNoiseStrategy(session)
        with pytest.raises(ValueError, match="at most the horizon n=12; got 13"):
            strategy.start(InProcessGrid(client_for(session)), num_rounds=13)
        run_on_grid(session, InProcessGrid(client_for(session)))
        with pytest.raises(RuntimeError, match="horizon"):
            session.server.release(session.server.new_sum(), [])


def test_the_standard_flower_loop_gives_the_same_model(tmp_path) -> None:
    """Strategy.start of Flower itself, driving our five methods, is a second implementation of the loop."""
    from flwr.serverapp.strategy import Strategy

    run = small_run(TASK, messages="per-user")
    with fedmf.start(run, tmp_path / "flower") as session:
        strategy = CorrelatedNoiseStrategy(session)
        grid = InProcessGrid(client_for(session))
        strategy.clients.nodes.gather(grid, 5.0)
        Strategy.start(strategy, grid, strategy.clients.arrays, num_rounds=run.cohorts.rounds)
        model = session.server.parameters.numpy().copy()
    assert np.array_equal(model, run_small(tmp_path / "ours", run))


def test_cohorts_do_not_depend_on_what_clients_do(tmp_path) -> None:
    run = small_run(TASK)
    asked = [schedule_of(run).cohort(t).tolist() for t in range(run.cohorts.rounds)]
    assert all(len(cohort) == 6 for cohort in asked)
    assert sorted(itertools.chain(*asked[:4])) == list(range(24))
