"""A commit under way while the next round trains: told after it is durable, nothing released twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.child_processes import in_child
from support.directories import DIMENSION, create
from support.small_runs import small_run

import fedmf
from fedmf.errors import LedgerError
from fedmf.optim.sgd import Sgd
from fedmf.records import Underway
from fedmf.records import ledger as ledger_module
from fedmf.rounds import RoundReport, here, loop, run_in_process
from fedmf.runs import PrivateServer, Run, Session
from fedmf.runs.releases import RoundUnderWay
from fedmf.training import LocalTrainer, UserFailure

ROUNDS = 6
POINTS = ["before the flush", "trained before the flush", "after the flush", "told"]
PATIENCE = 600.0


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too the next round trains meanwhile."""
    monkeypatch.setattr(loop, "_SHORT", math.inf)


def _run(noise_seed: int = 7) -> Run:
    return small_run(mechanism="bsr", bands=4, rounds=ROUNDS, noise_seed=noise_seed, evaluate_every=1000)


def _in_commit() -> bool:
    return threading.current_thread().name == "fedmf-commit"


def _carried_out(path: Path, run: Run, told: Any = lambda _report, _row: None) -> np.ndarray:
    opened = fedmf.resume(run, path) if path.exists() else fedmf.start(run, path)
    with opened as session:
        run_in_process(session, told)
        return session.server.parameters.numpy()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _carried_out(tmp_path_factory.mktemp("whole") / "run", _run())


def test_a_round_is_told_after_its_flush_which_waits_while_the_next_trains(
    uninterrupted: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    training = [threading.Event() for _ in range(ROUNDS)]
    train, flush = here.trained, ledger_module._flush

    def seen_training(request, trainer, sums):
        events.append(("trained", request.t))
        training[request.t].set()
        return train(request, trainer, sums)

    def late_flush(connection: sqlite3.Connection) -> None:
        if not _in_commit():
            return flush(connection)
        t = sum(kind == "durable" for kind, _ in events)
        if t + 1 < ROUNDS:
            assert training[t + 1].wait(PATIENCE)  # of the next round, though this one is not durable
        flush(connection)
        events.append(("durable", t))
        return None

    monkeypatch.setattr(here, "trained", seen_training)
    monkeypatch.setattr(ledger_module, "_flush", late_flush)
    model = _carried_out(tmp_path / "run", _run(), lambda report, _row: events.append(("told", report.t)))
    expected = [("trained", 0)]
    for t in range(ROUNDS):
        expected += [("trained", t + 1)] if t + 1 < ROUNDS else []
        expected += [("durable", t), ("told", t)]
    assert events == expected
    assert np.array_equal(model, uninterrupted)


def _logged(path: Path, log: Path, run: Run, dying_round: int = -1, where: str = "") -> None:
    """Go on; every model that is told is logged. The process dies at a point of the commit of a round."""
    train, flush = LocalTrainer.add_updates, ledger_module._flush
    opened = fedmf.resume(run, path) if path.exists() else fedmf.start(run, path)
    flushed = threading.Event()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_flush(connection: sqlite3.Connection) -> None:
        dying = False
        if _in_commit():  # one flush a round
            dying = len(commits) == dying_round
            commits.append(connection)
        if dying and where == "before the flush":
            die()
        if dying and where == "trained before the flush":
            threading.Event().wait(PATIENCE)
        if dying and where == "told":
            threading.Event().wait(0.5)  # whoever tells without waiting tells now
        flush(connection)
        if dying:
            flushed.set()

    def dying_training(self, parameters, user_ids, t, total):
        if t == dying_round + 1 and where == "after the flush":
            assert flushed.wait(PATIENCE)
            die()
        trained = train(self, parameters, user_ids, t, total)
        if t == dying_round + 1 and where == "trained before the flush":
            die()
        return trained

    ledger_module._flush, LocalTrainer.add_updates = dying_flush, dying_training
    with opened as session:
        commits = list(range(session.server.t))

        def told(report: RoundReport, _row: Mapping[str, Any] | None) -> None:
            sha = hashlib.sha256(session.server.parameters.numpy().tobytes()).hexdigest()
            with log.open("a") as file:
                file.write(json.dumps({"round": report.t, "sha": sha}) + "\n")
            if report.t == dying_round and where == "told":
                die()

        run_in_process(session, told)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads: they are idle
@pytest.mark.parametrize("seed", [7, -1], ids=["public key", "secret key"])
def test_a_process_killed_around_a_commit_under_way_releases_no_round_twice(
    seed: int, uninterrupted: np.ndarray, tmp_path: Path
) -> None:
    """With a secret key a round that was told and made again would be told with another model."""
    path, log, run = tmp_path / "run", tmp_path / "log", _run(seed)
    for t, where in enumerate(POINTS, start=1):
        assert in_child(lambda t=t, where=where: _logged(path, log, run, t, where)) == -signal.SIGKILL, where
    assert in_child(lambda: _logged(path, log, run)) == 0
    with fedmf.resume(run, path) as session:
        assert session.server.t == ROUNDS
        assert session.directory.ledger.summary().rounds == ROUNDS
        if seed == 7:
            assert np.array_equal(session.server.parameters.numpy(), uninterrupted)
    told: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        told.setdefault(entry["round"], set()).add(entry["sha"])
    assert all(len(models) == 1 for models in told.values())


def test_a_disk_that_fails_under_way_stops_the_run_before_anything_of_the_round_is_told(
    uninterrupted: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, flushes = list[int](), list[int]()
    flush = ledger_module._flush

    def failing(connection: sqlite3.Connection) -> None:
        flushes.append(0)
        if _in_commit() and len(flushes) > 5:
            raise OSError(28, "No space left on device")
        flush(connection)

    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, "_flush", failing)
        with pytest.raises(LedgerError, match="No space"):
            _carried_out(tmp_path / "run", _run(), lambda report, _row: told.append(report.t))
    assert told == list(range(len(told)))
    assert 0 < len(told) < ROUNDS
    with Session.resume(tmp_path / "run") as session:
        assert session.server.t == len(told)
    assert np.array_equal(_carried_out(tmp_path / "run", _run()), uninterrupted)


def _training_with(failing_round: int, trained: list[threading.Event]):
    """Local training in which a user fails in a round that is trained before the last one is durable."""
    train = LocalTrainer.add_updates

    def training(self, parameters, user_ids, t, total):
        failures = train(self, parameters, user_ids, t, total)
        trained[t].set()
        return [UserFailure(user_ids[0], "training", f"round {t}")] if t == failing_round else failures

    return training


@pytest.mark.parametrize("broken", [False, True], ids=["the one before ends well", "it fails"])
def test_what_training_on_a_model_to_come_found_is_told_after_that_model_and_its_own_round(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user fails in round 3 while round 2 is not durable: its name and metrics wait for both."""
    path, trained = tmp_path / "run", [threading.Event() for _ in range(ROUNDS)]
    kept = path / "failures.jsonl"
    seen, durable, flush = list[tuple[int, str]](), [0], ledger_module._flush

    def late_flush(connection: sqlite3.Connection) -> None:
        if _in_commit():
            if durable[0] == 2:
                assert trained[3].wait(PATIENCE)
                if broken:
                    raise OSError(5, "Input/output error")
            seen.append((durable[0], kept.read_text()))  # nothing of the round that is being flushed
            durable[0] += 1
        flush(connection)

    monkeypatch.setattr(LocalTrainer, "add_updates", _training_with(3, trained))
    monkeypatch.setattr(ledger_module, "_flush", late_flush)
    run = small_run(mechanism="bsr", bands=4, rounds=ROUNDS, noise_seed=7, evaluate_every=1)
    with contextlib.suppress(LedgerError):
        _carried_out(path, run)
        assert not broken
    monkeypatch.undo()
    assert all(text == "" for t, text in seen if t <= 3)
    names = [json.loads(line)["round"] for line in kept.read_text().splitlines()]
    assert names == ([] if broken else [4])
    with Session.resume(path) as session:
        assert max(session.metrics) == session.server.t == (2 if broken else ROUNDS)


@pytest.mark.parametrize("waiting", ["settle", "wait"])
def test_an_interruption_while_a_commit_is_awaited_loses_no_name(
    waiting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained = tmp_path / "run", [threading.Event() for _ in range(ROUNDS)]
    waited, told, interrupted = getattr(RoundUnderWay, waiting), list[int](), [0]

    def interrupted_wait(self: RoundUnderWay) -> None:
        if self.coming is not None and self.coming.t == 3 and not interrupted[0]:
            interrupted[0] += 1
            raise KeyboardInterrupt
        waited(self)

    monkeypatch.setattr(LocalTrainer, "add_updates", _training_with(3, trained))
    monkeypatch.setattr(RoundUnderWay, waiting, interrupted_wait)
    with pytest.raises(KeyboardInterrupt):
        _carried_out(path, _run(), lambda report, _row: told.append(report.t))
    assert interrupted == [1]
    assert told == [0, 1, 2, 3]
    assert [json.loads(line)["round"] for line in (path / "failures.jsonl").read_text().splitlines()] == [4]


@pytest.mark.parametrize("begun", [False, True], ids=["before it runs", "while it runs"])
def test_an_interruption_while_a_commit_begins_loses_no_name(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained = tmp_path / "run", [threading.Event() for _ in range(ROUNDS)]
    begin, told = Underway.begin, list[int]()

    def interrupted(self: Underway) -> None:
        if trained[3].is_set():
            monkeypatch.setattr(Underway, "begin", begin)
            if begun:
                begin(self)
            raise KeyboardInterrupt
        begin(self)

    monkeypatch.setattr(LocalTrainer, "add_updates", _training_with(3, trained))
    monkeypatch.setattr(Underway, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _carried_out(path, _run(), lambda report, _row: told.append(report.t))
    assert told == [0, 1, 2, 3]
    assert [json.loads(line)["round"] for line in (path / "failures.jsonl").read_text().splitlines()] == [4]
    assert json.loads((path / "statement.json").read_text())["rounds_released"] == 4
    with Session.resume(path) as session:
        assert session.server.t == 4


def test_code_of_somebodys_own_sees_committed_models_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop calls the module itself, which could print: every commit ends before it is called again."""
    calls, under_way = list[bool](), list[PrivateServer]()
    run, linear = replace(_run(), local=replace(_run().local, engine="loop")), torch.nn.Linear.forward
    begin = PrivateServer.begin_release

    def seen(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        calls.append(bool(under_way))
        return linear(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", seen)
    monkeypatch.setattr(PrivateServer, "begin_release", lambda *a: (under_way.append(a[0]), begin(*a))[1])
    _carried_out(tmp_path / "run", run)
    assert calls
    assert not any(calls)
    assert not under_way


def test_reading_the_model_waits_for_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, may_flush, read = threading.Event(), threading.Event(), list[torch.Tensor]()
    flush = ledger_module._flush

    def held(connection: sqlite3.Connection) -> None:
        reached.set()
        assert may_flush.wait(PATIENCE)
        flush(connection)

    with create(tmp_path / "run") as directory:
        optimizer = Sgd().build([(DIMENSION,)], 6)
        server = PrivateServer(directory.header.plan, directory, torch.zeros(DIMENSION), optimizer)
        directory.ledger.opening()
        monkeypatch.setattr(ledger_module, "_flush", held)
        total = server.new_sum()
        total.add_nothing(2)
        server.begin_release(total, ["u0", "u1"])
        reader = threading.Thread(target=lambda: read.append(server.parameters))
        reader.start()
        assert reached.wait(PATIENCE)
        reader.join(0.2)
        assert reader.is_alive()
        assert not read
        may_flush.set()
        reader.join(PATIENCE)
        assert torch.equal(read[0], server.coming)
        assert not torch.equal(read[0], torch.zeros(DIMENSION))
        assert server.t == 1
