"""The one loop of rounds: without Flower and with it, and what a kill between two of its steps
loses.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from support.child_processes import in_child
from support.small_runs import client_for, linear_task, seeing, small_run, write_config
from support.traffic import SentMessage, watched_messages
from support.wrapped_apps import USER_LIST, USERS, model, private, saying, update_of

import fedmf
from fedmf.errors import UnsoundSumError
from fedmf.flower import ClientReportedIdentity, InProcessGrid, run_on_grid
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundReport, TrainingLoop
from fedmf.runs.run_statement import account
from fedmf.runs.session import Session
from fedmf.runs.simulation import Request, run_in_process
from fedmf.runs.statistics import QuantileClipping

WITHOUT_FLOWER = """
import importlib.metadata, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "ray", "httpx"):
            raise ModuleNotFoundError(f"No module named {name!r}")
    def find_distributions(self, context):
        if context.name == "flwr":
            raise importlib.metadata.PackageNotFoundError("flwr")
        return ()
sys.meta_path.insert(0, Absent())
from fedmf.cli.app import run
config, place, other = sys.argv[1:]
assert run(["simulate", config, "--out", place]) == 0
slow = ("flwr", "sklearn", "pandas", "sympy")
print("slow to import:", [name for name in slow if name in sys.modules])
sys.exit(run(["simulate", config, "--out", other, "--engine", "ray"]))
"""


def test_a_run_needs_no_flower_and_what_needs_it_says_so_in_a_line(tmp_path: Path) -> None:
    config = write_config(tmp_path / "small.toml")
    run = tmp_path / "run"
    other = tmp_path / "ray"
    command = [sys.executable, "-c", WITHOUT_FLOWER, str(config), str(run), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "slow to import: []" in done.stdout, done.stderr
    with Session.resume(run) as session:
        assert session.server.t == session.server.horizon
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "pip install 'fedmf[flower]'" in done.stderr
    assert not other.exists()


@pytest.mark.parametrize("messages", ["aggregate", "per-user"])
def test_clients_are_told_what_messages_would_tell_and_the_bits_are_the_same(
    tmp_path: Path, messages: str
) -> None:
    run = small_run(messages=messages, rounds=6)
    sent: dict[str, list[SentMessage]] = {"here": [], "grid": []}
    models = dict[str, np.ndarray]()
    reports = dict[str, list[RoundReport]]()
    for name, told in sent.items():
        reports[name] = []
        with fedmf.start(run, tmp_path / name) as session, watched_messages(told.append):
            note = seeing(reports[name].append)
            if name == "here":
                run_in_process(session, note)
            else:
                run_on_grid(session, InProcessGrid(client_for(session)), note)
            models[name] = session.server.parameters.numpy().copy()
    assert np.array_equal(models["here"], models["grid"])
    asked = {name: [one for one in told if one.kind != "query"] for name, told in sent.items()}
    assert len(asked["here"]) >= 6
    for mine, theirs in zip(asked["here"], asked["grid"], strict=True):
        assert (mine.kind, mine.group, mine.users) == (theirs.kind, theirs.group, theirs.users)
        assert mine.parameters is not None
        assert theirs.parameters is not None
        assert np.array_equal(mine.parameters.numpy(), theirs.parameters.numpy())
    counts = {
        name: [(r.round_index, r.cohort_size, r.present) for r in rows]
        for name, rows in reports.items()
    }
    assert counts["here"] == counts["grid"]


@pytest.mark.parametrize("messages", ["aggregate", "per-user"])
def test_code_that_fails_outside_a_users_training_makes_zeros_and_never_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: str
) -> None:
    run = small_run(messages=messages, rounds=6)
    train = Request.trained
    reports = list[RoundReport]()

    def failing(request, trainer, sums):  # type: ignore[no-untyped-def]
        if request.t == 1:
            raise RuntimeError("no memory")
        return train(request, trainer, sums)

    monkeypatch.setattr(Request, "trained", failing)
    with fedmf.start(run, tmp_path / "run") as session:
        run_in_process(session, seeing(reports.append))
        assert session.server.t == 6
    assert [len(report.failures) for report in reports] == [0, 6, 0, 0, 0, 0]
    for failure in reports[1].failures:
        assert failure.reason.startswith("RuntimeError: no memory")
    assert reports[1].present == 6


def test_a_sum_that_no_clipped_updates_have_ends_the_run_before_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsound(request, trainer, sums):  # type: ignore[no-untyped-def]
        raise UnsoundSumError("above the clip norm")

    run = small_run(rounds=6)
    with fedmf.start(run, tmp_path / "run") as session:
        with monkeypatch.context() as patched:
            patched.setattr(Request, "trained", unsound)
            with pytest.raises(UnsoundSumError):
                run_in_process(session)
        assert session.server.t == 0
        run_in_process(session)
        assert session.server.t == 6


CLIPPING = QuantileClipping(quantile=0.3, rounds_per_update=1)
#: The round at which processes die.
DYING = 4


def of_own_clients(path: Path) -> None:
    run = dataclasses.replace(small_run(linear_task(24, 30), mechanism="bisr"), clipping=CLIPPING)
    with fedmf.resume(run, path) if path.exists() else fedmf.start(run, path) as session:
        run_on_grid(session, InProcessGrid(client_for(session), nodes=run.execution.workers))


def wrapped_app(path: Path) -> None:
    strategy = private(FedAvg(), path, users=ClientReportedIdentity(USER_LIST), clipping=CLIPPING)
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    strategy.start(grid=grid, initial_arrays=model())
    strategy.close()


WAYS: dict[str, Callable[[Path], None]] = {"own clients": of_own_clients, "an app": wrapped_app}


def what_is_kept(path: Path) -> tuple[Any, ...]:
    """Rows of metrics, the model, the statement."""
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.metrics()
    parameters = {name: tensor.tolist() for name, tensor in fedmf.load_model(path).items()}
    return rows, parameters, account(path).to_dict()


def dies(owner: Any, name: str, when: Callable[..., bool], after: bool = False) -> None:
    """The process is killed before, or after, a call of a method."""
    called = getattr(owner, name)

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        returned = called(self, *arguments, **named) if after else None
        if when(self, *arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return returned if after else called(self, *arguments, **named)

    setattr(owner, name, dying)


#: Where a process dies, by what it has done of its round.
STEPS: dict[str, Callable[[], None]] = {
    "requested": lambda: dies(
        TrainingLoop, "cohort", lambda _, round_index: round_index == DYING - 1, after=True
    ),
    "released": lambda: dies(Session, "note_failures", lambda _, t, *__: t + 1 == DYING),
    "recorded": lambda: dies(
        TrainingLoop, "_report_round", lambda self, _: self.session.server.t == DYING
    ),
    "reported": lambda: dies(
        TrainingLoop, "release", lambda _, round_index, __: round_index == DYING - 1, after=True
    ),
}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_process_killed_between_any_two_steps_loses_nothing(way: str, tmp_path: Path) -> None:
    """Rows of metrics (clip norms, ε), models and statements are those of a whole run."""
    run = WAYS[way]
    run(tmp_path / "whole")
    for step, prepare in STEPS.items():
        path = tmp_path / step

        def dying(prepare: Callable[[], None] = prepare, path: Path = path) -> None:
            prepare()
            run(path)

        assert in_child(dying) == -signal.SIGKILL
        run(path)
        assert what_is_kept(path) == what_is_kept(tmp_path / "whole"), step
