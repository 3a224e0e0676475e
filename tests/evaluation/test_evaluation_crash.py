"""Private evaluation is released exactly once, whatever kills the process, and from records of one copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.child_processes import in_child
from support.judged_tasks import ROUNDS, carry_out, judged_run
from support.ledgers import tails

import fedmf
from fedmf.errors import LedgerError
from fedmf.parts import EvaluationPlan
from fedmf.runs import PrivateEvaluator, Session, account
from fedmf.runs.evaluation import private_columns
from fedmf.runs.recorded import LEDGER

KEYS = {"mechanism": "bisr", "bands": 4, "evaluate_every": 5, "partition": "dirichlet-sizes"}
DUE = list(range(2, ROUNDS + 1, 2))
COLUMNS = [column for name in ("loss", "accuracy") for column in private_columns(name)]


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(t: int, where: str, log: Path) -> Callable[[Session], None]:
    """Arrange for SIGKILL at a point of the evaluation after t rounds; log each estimate that leaves."""

    def prepare(session: Session) -> None:
        evaluator = session.evaluator
        assert isinstance(evaluator, PrivateEvaluator)
        release, ledger = evaluator.release, evaluator._ledger
        commit = ledger.commit_round

        def committing(*arguments: Any) -> None:
            at = session.server.t == t
            if at and where == "before the ledger":
                _die()
            commit(*arguments)
            if at and where == "after the ledger":
                _die()

        def releasing(e: int, total: Any, users: Any) -> Any:
            if session.server.t == t and where == "before the release":
                _die()
            estimate = release(e, total, users)
            with log.open("a") as file:
                file.write(json.dumps([e, estimate]) + "\n")
            if session.server.t == t and where == "before the metrics":
                _die()
            return estimate

        ledger.commit_round, evaluator.release = committing, releasing  # type: ignore[method-assign]

    return prepare


POINTS = ["before the release", "before the ledger", "after the ledger", "before the metrics"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads: they are idle
def test_killed_at_every_point_of_an_evaluation(tmp_path: Path) -> None:
    """The same curve as without kills, and no evaluation is ever shown with two values."""
    run, path, log = judged_run(**KEYS), tmp_path / "run", tmp_path / "log"
    whole = carry_out(tmp_path / "whole", run)
    for t, where in zip(DUE[1:], POINTS, strict=False):
        prepare = _dying(t, where, log)
        assert in_child(lambda p=prepare: carry_out(path, run, prepare=p)) == -signal.SIGKILL, where
    assert in_child(lambda: carry_out(path, run, prepare=_dying(-1, "", log))) == 0
    with fedmf.resume(run, path) as session:
        assert session.metrics == whole
        assert session.directory.own_records["evaluation"].replay().rounds == len(DUE)
        assert len(tails(path, EvaluationPlan.ledger)) == 1
    seen: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        e, estimate = json.loads(line)
        seen.setdefault(e, set()).add(json.dumps(estimate))
    assert all(len(values) == 1 for values in seen.values())
    assert account(path).to_dict()["evaluation"]["evaluations_released"] == len(DUE)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_lost_rounds_never_use_a_row_of_evaluations_again(tmp_path: Path) -> None:
    """Models of rounds 1 to 5 are lost with the process; what was said of them stays, and counts."""
    run, path, log = judged_run(**KEYS, checkpoint_every=6), tmp_path / "run", tmp_path / "log"

    def prepare(session: Session) -> None:
        _dying(-1, "", log)(session)
        commit_row = session.directory.commit_row

        def dying(t: int, users: Any) -> None:
            if t == 4:
                _die()
            commit_row(t, users)

        session.directory.commit_row = dying  # type: ignore[method-assign]

    assert in_child(lambda: carry_out(path, run, prepare=prepare)) == -signal.SIGKILL
    metrics = carry_out(path, run, prepare=_dying(-1, "", log))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e for e, _ in entries] == list(range(len(DUE)))
    for e, estimate in entries:
        assert {name: metrics[DUE[e]][name] for name in COLUMNS} == estimate


def _exchange(source: Path, target: Path) -> None:
    """Put the records of evaluations of one directory in place of another's."""
    for file in target.glob(f"{EvaluationPlan.ledger}*"):
        file.unlink()
    for file in source.glob(f"{EvaluationPlan.ledger}*"):
        shutil.copy(file, target / file.name)


def test_records_from_other_copies_are_refused(tmp_path: Path) -> None:
    """An older ledger of evaluations would have its rows of noise used for other sums."""
    run, path = judged_run(**KEYS), tmp_path / "run"
    old = tmp_path / "old"

    def keep(session: Session) -> None:
        release = session.evaluator.release

        def kept(e: int, total: Any, users: Any) -> Any:
            if e == 2:
                shutil.copytree(path, old)
            return release(e, total, users)

        session.evaluator.release = kept  # type: ignore[union-attr,method-assign]

    carry_out(path, run, prepare=keep)
    (tmp_path / "newest").mkdir()
    _exchange(path, tmp_path / "newest")
    _exchange(old, path)
    with pytest.raises(
        LedgerError, match=r"tail missing: .* holds 2 evaluations; after 12 rounds there must be at least 5"
    ):
        fedmf.resume(run, path)
    _exchange(tmp_path / "newest", old)
    with pytest.raises(LedgerError, match="holds 6; after 6 rounds there can be 3 at most"):
        account(old)
    for name, change, message in (
        ("other key", {"noise_seed": 8}, "is not that of the run's key"),
        ("other plan", {"epsilon": 5.0}, "is not the ledger of this run's evaluations"),
    ):
        carry_out(tmp_path / name, judged_run(**{**KEYS, **change}))
        _exchange(tmp_path / name, path)
        with pytest.raises(LedgerError, match=message):
            account(path)
    (path / EvaluationPlan.ledger).unlink()
    with pytest.raises(LedgerError, match="does not exist"):
        account(path)
    assert (path / LEDGER).is_file()
