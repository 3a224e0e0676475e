"""Runs in one process: without Flower, asking what messages would ask, and with failures of local code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.small_runs import client_for, seeing, small_run, write_config
from support.traffic import SentMessage, watched_messages

import fedmf
from fedmf.errors import UnsoundSumError
from fedmf.flower import InProcessGrid, run_on_grid
from fedmf.runs import Request, RoundReport, Session, run_in_process

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
from fedmf.cli import main
try:
    sys.exit(main(sys.argv[1:]))
finally:
    print("modules of flwr:", sum(name.partition(".")[0] == "flwr" for name in sys.modules))
    print("slow to import:", [name for name in ("sklearn", "pandas", "sympy") if name in sys.modules])
"""


def without_flower(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where Flower is not installed."""
    command = [sys.executable, "-c", WITHOUT_FLOWER, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_a_run_is_simulated_accounted_and_resumed_where_flower_is_not_installed(tmp_path: Path) -> None:
    config, run = write_config(tmp_path / "small.toml"), tmp_path / "run"
    done = without_flower("simulate", str(config), "--out", str(run))
    assert done.returncode == 0, done.stderr
    assert "modules of flwr: 0" in done.stdout
    assert "slow to import: []" in done.stdout
    with Session.resume(run) as session:
        assert session.server.t == session.server.horizon
    assert without_flower("account", str(run)).returncode == 0


def test_what_needs_flower_says_so_in_a_line(tmp_path: Path) -> None:
    config = write_config(tmp_path / "small.toml")
    refused = without_flower("simulate", str(config), "--out", str(tmp_path / "run"), "--engine", "ray")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert "pip install 'fedmf[flower]'" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("messages", ["slice", "per-user"])
def test_clients_are_told_what_messages_would_tell_and_the_bits_are_the_same(
    tmp_path: Path, messages: str
) -> None:
    run = small_run(messages=messages, rounds=6)
    sent: dict[str, list[SentMessage]] = {"here": [], "grid": []}
    models, reports = dict[str, np.ndarray](), dict[str, list[RoundReport]]()
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
    asked = {
        name: [(one.kind, one.group, one.users) for one in told if one.kind != "query"]
        for name, told in sent.items()
    }
    assert asked["here"] == asked["grid"]
    assert len(asked["here"]) >= run.cohorts.rounds
    for mine, theirs in zip(sent["here"], (one for one in sent["grid"] if one.kind != "query"), strict=True):
        assert mine.parameters is not None
        assert theirs.parameters is not None
        assert np.array_equal(mine.parameters.numpy(), theirs.parameters.numpy())
    told = {name: [(r.t, r.asked, r.present) for r in rows] for name, rows in reports.items()}
    assert told["here"] == told["grid"]


@pytest.mark.parametrize("messages", ["slice", "per-user"])
def test_code_that_fails_outside_a_users_training_makes_zeros_and_never_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: str
) -> None:
    run, train, reports = small_run(messages=messages, rounds=6), Request.trained, list[RoundReport]()

    def failing(request, trainer, sums):
        if request.t == 1:
            raise RuntimeError("no memory")
        return train(request, trainer, sums)

    monkeypatch.setattr(Request, "trained", failing)
    with fedmf.start(run, tmp_path / "run") as session:
        run_in_process(session, seeing(reports.append))
        assert session.server.t == 6
    assert [len(report.failures) for report in reports] == [0, 6, 0, 0, 0, 0]
    assert {failure.reason for failure in reports[1].failures} == {"node 0: RuntimeError: no memory"}
    assert reports[1].present == 6


def test_a_sum_that_no_clipped_updates_have_ends_the_run_before_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsound(request, trainer, sums):
        raise UnsoundSumError("above the clip norm")

    run = small_run(rounds=6)
    with fedmf.start(run, tmp_path / "run") as session:
        sound = Request.trained
        monkeypatch.setattr(Request, "trained", unsound)
        with pytest.raises(UnsoundSumError):
            run_in_process(session)
        assert session.server.t == 0
        monkeypatch.setattr(Request, "trained", sound)
        run_in_process(session)
        assert session.server.t == 6
