"""What a wrapped app is told of waiting changes what it does, or is refused: no record says more."""

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from support.ledgers import participations
from support.wrapped_apps import COHORT, USERS, adding, model, private, update_of

from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, NodesAreUsers
from fedmf.flower.wrapper.cohort_grid import ForwardedGrid
from fedmf.records import Ledger
from fedmf.runs import Execution, read_header
from fedmf.runs.elsewhere.task import READ, UNREAD


def test_records_say_what_is_read_and_nothing_else(tmp_path: Path) -> None:
    """One message a user; nothing about training, which is the clients'."""
    path = tmp_path / "run"
    strategy = private(FedAvg(), path, min_replies=2)
    strategy.begin(model())
    assumptions = " ".join(strategy.statement().to_dict()["assumptions"])
    assert "hold up the reply of the node" not in assumptions
    strategy.close()
    tables = tomllib.loads((path / "config.toml").read_text())
    assert {name.replace("-", "_") for name in tables["execution"]} == READ
    assert "client" not in tables
    expected = Execution(messages="per-user", users_per_message=1, min_replies=2)
    assert read_header(path).run["execution"] == expected.to_dict()
    assert {field.name for field in dataclasses.fields(Execution)} == READ | UNREAD
    with pytest.raises(ConfigError, match="min_replies must be an integer"):
        private(FedAvg(), tmp_path / "other", min_replies=-1)


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


def present(path: Path, grid: Grid, rounds: int, min_replies: int) -> list[tuple[int, str]]:
    """(round, user) of everybody who took part."""
    strategy = private(FedAvg(), path, min_replies=min_replies)
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=rounds, timeout=300.0)
    strategy.close()
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        return sorted(participations(ledger))


@pytest.mark.parametrize(("min_replies", "replies"), [(0, COHORT), (COHORT - 1, COHORT - 1)])
def test_min_replies_decide_who_is_waited_for(min_replies: int, replies: int, tmp_path: Path) -> None:
    grid = LateReply(InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS))
    assert len(present(tmp_path / "run", grid, 1, min_replies)) == replies


class Deaf(ForwardedGrid):
    """A grid on which nobody hears anything; how often was asked."""

    asked = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked += 1
        return [f"lost-{self.asked}-{index}" for index, _ in enumerate(messages)]


@pytest.mark.parametrize("retries", [0, 2])
def test_silence_is_asked_again(retries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmf.flower.strategy.RETRIES", retries)
    grid = Deaf(InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS))
    strategy = private(FedAvg(), tmp_path / "run")
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=1, timeout=0.05)
    assert grid.asked == retries + 1
    statement = strategy.statement().to_dict()
    assert (statement["rounds_released"], statement["users_participated"]) == (1, 0)


@pytest.mark.parametrize("seconds", [0.25, 60.0])
def test_the_handshake_waits_as_long_as_is_said(seconds: float, tmp_path: Path) -> None:
    waited: list[float | None] = []

    class Noting(NodesAreUsers):
        def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
            waited.append(limit)
            super().gather(grid, timeout, limit)

    strategy = private(FedAvg(), tmp_path / "run", handshake_timeout=seconds, identity=Noting(USERS))
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=1)
    assert waited == [seconds]
