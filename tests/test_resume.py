"""A run killed anywhere continues to the same model, bit for bit; no round ever shows two models."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from support.child_processes import die_at_flush, in_child
from support.ledgers import flip_in_the_middle, last_state, tails
from support.small_runs import client_for, run_small, small_run, watched

import fedmf
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError, LedgerError
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.records import frames
from fedmf.records.ledger import Ledger
from fedmf.runs import Session
from fedmf.runs.tables import render_toml

RUN = small_run(mechanism="bsr", bands=4, server_momentum=0.9)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_logged(path: Path, log: Path, patch: Callable[[Session], None] = lambda _: None) -> None:
    """Start or resume the run; log the model that leaves the server in each round."""

    def note(message: Message) -> None:
        config = message.content.config_records["config"]
        model = message.content.array_records["arrays"]["parameters"].numpy()
        line = json.dumps({"round": config["round"], "sha": hashlib.sha256(model.tobytes()).hexdigest()})
        with log.open("a") as file:
            file.write(line + "\n")

    opened = fedmf.resume(RUN, path) if path.exists() else fedmf.start(RUN, path)
    with opened as session:
        patch(session)
        run_on_grid(session, InProcessGrid(watched(client_for(session), note)))


def _kill_in_round(session: Session, t: int, where: str) -> None:
    """Arrange for SIGKILL at a chosen point of the release of round t."""
    directory, ledger = session.directory, session.directory.ledger
    commit, commit_round = directory.commit, ledger.commit_round

    def dying_commit(round_index, *rest):
        if round_index == t and where == "before the state":
            _die()
        if round_index == t and where == "before the flush":
            frames._flush = _die
        commit(round_index, *rest)
        if round_index == t and where == "after the commit":
            _die()

    def dying_commit_round(round_index, *rest):
        if round_index == t and where == "before the row":
            _die()
        commit_round(round_index, *rest)
        if round_index == t and where == "after the row":
            _die()

    directory.commit, ledger.commit_round = dying_commit, dying_commit_round


POINTS = [
    "before the state",
    "before the row",
    "before the flush",
    "after the row",
    "after the commit",
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return run_small(tmp_path_factory.mktemp("whole") / "run", RUN)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads: they are idle
def test_killed_at_every_point_of_a_release(uninterrupted: np.ndarray, tmp_path: Path) -> None:
    path, log = tmp_path / "run", tmp_path / "log"
    for t, where in enumerate(POINTS, start=3):
        status = in_child(
            lambda t=t, where=where: _run_logged(path, log, lambda s: _kill_in_round(s, t, where))
        )
        assert status == -signal.SIGKILL, where
    assert in_child(lambda: _run_logged(path, log)) == 0
    with fedmf.resume(RUN, path) as session:
        assert session.server.t == RUN.cohorts.rounds
        assert np.array_equal(session.server.parameters.numpy(), uninterrupted)
        assert session.directory.ledger.replay().rounds == RUN.cohorts.rounds
        assert sorted(session.metrics) == list(range(RUN.cohorts.rounds + 1))
    seen: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        seen.setdefault(entry["round"], set()).add(entry["sha"])
    assert set(seen) == set(range(RUN.cohorts.rounds))
    # One model a round, ever: a row of noise was never used for two different releases.
    assert all(len(models) == 1 for models in seen.values())


def _state(run: Path) -> dict[str, object]:
    """All that a state holds but the record it follows, which has random bits of each opening in it."""
    parameters, optimizer, noise = last_state(run)
    assert noise.pop("head")
    tensors = {"parameters": parameters, **optimizer}
    return {**{name: value.numpy().tobytes() for name, value in tensors.items()}, "noise": noise}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads: they are idle
def test_kill_9_of_the_command_and_resume(tmp_path: Path) -> None:
    config, place = tmp_path / "run.toml", tmp_path / "killed"
    run = small_run(rounds=60, mechanism="bisr", bands=4, noise_seed=11)
    config.write_text(render_toml(run))
    assert command(["simulate", str(config), "--out", str(tmp_path / "whole")]) == 0

    def dying(number: int) -> None:
        die_at_flush(number, flushed=number % 2 == 0)
        command(["simulate", str(config), "--resume" if place.exists() else "--out", str(place)])

    for number in (9, 14, 5):
        before = _rounds(place / "ledger.sqlite")
        assert in_child(lambda number=number: dying(number)) == -signal.SIGKILL
        assert before < _rounds(place / "ledger.sqlite") < 60
    assert command(["simulate", str(config), "--resume", str(place)]) == 0
    states = [_state(tmp_path / run) for run in ("killed", "whole")]
    assert states[0] == states[1]
    metrics = [(tmp_path / run / "metrics.parquet").read_bytes() for run in ("killed", "whole")]
    assert metrics[0] == metrics[1]
    statements = [json.loads((tmp_path / run / "statement.json").read_text()) for run in ("killed", "whole")]
    assert statements[0] == statements[1]


def _rounds(path: Path) -> int:
    if not path.exists():
        return 0
    with Ledger.open(path, read_only=True) as ledger:
        last = ledger.last_round()
    return 0 if last is None else last + 1


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    run_small(tmp_path / "run", RUN)
    other = replace(RUN, privacy=replace(RUN.privacy, epsilon=4.0))
    with pytest.raises(ConfigError, match=r"its privacy\.epsilon is 8\.0, not 4\.0"):
        fedmf.resume(other, tmp_path / "run")


def test_a_finished_run_resumes_to_itself(uninterrupted: np.ndarray, tmp_path: Path) -> None:
    run_small(tmp_path / "run", RUN)
    before = (tmp_path / "run" / "statement.json").read_bytes()
    with Session.resume(tmp_path / "run") as session:
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert np.array_equal(session.server.parameters.numpy(), uninterrupted)
    assert (tmp_path / "run" / "statement.json").read_bytes() == before


def test_two_processes_cannot_run_the_same_directory(tmp_path: Path) -> None:

    with fedmf.start(RUN, tmp_path / "run"), pytest.raises(LedgerError, match="another process"):
        fedmf.resume(RUN, tmp_path / "run")


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    run_small(tmp_path / "run", RUN)
    (file,) = tails(tmp_path / "run")
    flip_in_the_middle(file)
    with pytest.raises(LedgerError, match=r"tail-0000001 is damaged"):
        fedmf.resume(RUN, tmp_path / "run")


def test_a_full_disk_ends_the_process_and_the_run_goes_on_after(
    uninterrupted: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    flush = frames._flush
    with fedmf.start(RUN, path) as session:
        calls = iter(range(10**6))

        def full(descriptor: int) -> None:
            if next(calls) == 9:
                raise OSError(28, "No space left on device")
            flush(descriptor)

        monkeypatch.setattr(frames, "_flush", full)
        with pytest.raises(LedgerError, match=r"metrics after \d rounds failed .*No space left"):
            run_on_grid(session, InProcessGrid(client_for(session)))
        monkeypatch.undo()
        stopped = session.server.t
    assert 0 < stopped < RUN.cohorts.rounds
    with fedmf.resume(RUN, path) as session:
        assert session.server.t == stopped
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert np.array_equal(session.server.parameters.numpy(), uninterrupted)
