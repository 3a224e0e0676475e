"""What a wrapped app is told of waiting changes what it does, or is refused: no record says more."""

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import COHORT, ROSTER, ROUNDS, USERS, adding, model, private, saying, update_of

from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, NodesAreUsers, UsersSayWho
from fedmf.flower.traffic import ForwardedGrid
from fedmf.flower.wrapper import strategy as wrapper
from fedmf.records import Ledger
from fedmf.runs import Execution, Waiting, read_header
from fedmf.runs.elsewhere.task import READ, UNREAD


def test_every_field_of_waiting_is_read_or_refused(tmp_path: Path) -> None:
    """A new field of it must be tried below, or be refused here."""
    tried = {"handshake_timeout", "min_replies", "grace", "refusals", "silent_retries"}
    fields = {field.name for field in dataclasses.fields(Waiting)}
    assert fields - tried == {"round_timeout", "enrolment"}
    assert tried | {"messages"} == READ
    assert {field.name for field in dataclasses.fields(Execution)} == READ | UNREAD
    for waiting, said in (
        (Waiting(round_timeout=5.0), r"round_timeout .* left out; got 5\.0\. Give start its timeout"),
        (Waiting(enrolment="/etc/enrolled"), "enrolment .* got '/etc/enrolled'. Give identity=EnrolledUsers"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            private(FedAvg(), tmp_path / "run", waiting=waiting)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [Execution(), Execution(messages="per-user", workers=4), None, 5.0])
def test_what_is_no_waiting_is_refused(given: object, tmp_path: Path) -> None:
    """An execution is a waiting and more, of which nothing would be done."""
    with pytest.raises(ConfigError, match=r"waiting must be a fedmf\.runs\.Waiting; got") as error:
        private(FedAvg(), tmp_path / "run", waiting=given)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_records_say_what_is_read_and_nothing_else(tmp_path: Path) -> None:
    """One message a user, whatever was left out; nothing about training, which is the clients'."""
    path = tmp_path / "run"
    strategy = private(FedAvg(), path, waiting=Waiting(grace=2.0, silent_retries=3))
    strategy.begin(model())
    assumptions = " ".join(strategy.statement().to_dict()["assumptions"])
    assert "no worker process is killed" not in assumptions
    assert "hold up the reply of the node" not in assumptions
    strategy.close()
    tables = tomllib.loads((path / "config.toml").read_text())
    assert {name.replace("-", "_") for name in tables["execution"]} == READ
    assert "local" not in tables
    assert (tables["execution"]["grace"], tables["execution"]["silent-retries"]) == (2.0, 3)
    expected = Execution(messages="per-user", users_per_message=1, grace=2.0, silent_retries=3)
    assert read_header(path).run["execution"] == expected.to_dict()


def test_a_run_that_recorded_what_nothing_read_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote such fields down; what they did was the same."""
    path, app = tmp_path / "run", saying(lambda user, _: update_of(user))

    def carried_out(rounds: int, asked: Waiting) -> np.ndarray:
        strategy = private(FedAvg(), path, identity=UsersSayWho(ROSTER), waiting=asked)
        grid = InProcessGrid(app, nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=rounds)
        strategy.close()
        assert result.arrays is not None
        return np.concatenate([array.numpy().reshape(-1) for array in result.arrays.values()])

    written = Execution(messages="per-user", evaluate_every=5, workers=4)
    with monkeypatch.context() as earlier:
        earlier.setattr(wrapper, "_execution_of", lambda _: written)
        carried_out(2, Waiting())
    assert read_header(path).run["execution"]["evaluate_every"] == 5
    stopped = carried_out(ROUNDS, Waiting())
    with pytest.raises(ConfigError, match=r"its execution\.grace is 0.0, not 2.0"):
        carried_out(ROUNDS, Waiting(grace=2.0))
    path = tmp_path / "whole"
    assert np.array_equal(stopped, carried_out(ROUNDS, Waiting()))


# What each field that is read does.


class LateReply(ForwardedGrid):
    """A grid on which the reply of one node of each round comes when replies were looked for three times."""

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self.late, self.looks = "", 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(super().push_messages(messages))
        self.late, self.looks = sent[-1], 0
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks += 1
        return super().pull_messages(one for one in message_ids if one != self.late or self.looks > 3)


def present(path: Path, grid: Grid, rounds: int, asked: Waiting) -> list[tuple[int, str]]:
    """(round, user) of everybody who took part."""
    strategy = private(FedAvg(), path, waiting=asked)
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=rounds, timeout=300.0)
    strategy.close()
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        return sorted(ledger.participations())


@pytest.mark.parametrize(
    ("asked", "replies"),
    [
        (Waiting(), COHORT),
        (Waiting(min_replies=COHORT - 1), COHORT - 1),
        (Waiting(min_replies=COHORT - 1, grace=120.0), COHORT),
    ],
)
def test_min_replies_and_grace_decide_who_is_waited_for(asked: Waiting, replies: int, tmp_path: Path) -> None:
    grid = LateReply(InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS))
    assert len(present(tmp_path / "run", grid, 1, asked)) == replies


@pytest.mark.parametrize(("refusals", "times"), [(0, 2), (1, 1), (2, 2)])
def test_refusals_decide_when_a_useless_node_is_asked_no_more(
    refusals: int, times: int, tmp_path: Path
) -> None:
    """Every user has two rounds; all replies hold NaN."""
    grid = InProcessGrid(adding(lambda _user, _: np.full(21, np.nan)), nodes=USERS)
    found = present(tmp_path / "run", grid, ROUNDS, Waiting(refusals=refusals))
    assert len(found) == USERS * times


class Deaf(ForwardedGrid):
    """A grid on which nobody hears anything; how often was asked."""

    asked = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked += 1
        return [f"lost-{self.asked}-{index}" for index, _ in enumerate(messages)]


@pytest.mark.parametrize("retries", [0, 2])
def test_silent_retries_decide_how_often_silence_is_asked_again(retries: int, tmp_path: Path) -> None:
    grid = Deaf(InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS))
    strategy = private(FedAvg(), tmp_path / "run", waiting=Waiting(silent_retries=retries))
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=1, timeout=0.05)
    assert grid.asked == retries + 1
    statement = strategy.statement().to_dict()
    assert (statement["rounds_released"], statement["rounds_empty"]) == (1, 1)


@pytest.mark.parametrize("seconds", [0.25, 60.0])
def test_the_handshake_waits_as_long_as_is_said(seconds: float, tmp_path: Path) -> None:
    waited: list[float | None] = []

    class Noting(NodesAreUsers):
        def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
            waited.append(limit)
            super().gather(grid, timeout, limit)

    asked = Waiting(handshake_timeout=seconds)
    strategy = private(FedAvg(), tmp_path / "run", waiting=asked, identity=Noting(USERS))
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=1)
    assert waited == [seconds]
