"""A run that was stopped, killed or copied: each process draws fresh noise, all of it that of the
plan.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.covariance import covariance_fits
from support.small_runs import linear_task, small_run

import fedmf
from fedmf.release.private_server import PrivateServer
from fedmf.runs.run import Run
from fedmf.runs.session import Session

DIMENSION = 10_000
ROUNDS = 12
COPIED = 5
TASK = linear_task(24, DIMENSION)
FORMS = {
    "banded inverse": {"mechanism": "bisr", "bands": 4},
    "blt": {"mechanism": "blt"},
    "dense": {"mechanism": "dense"},
}


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied and continued on purpose, as on machines that do not know of each other."""
    monkeypatch.setattr("fedmf.ledger.lock.marks_folder", lambda: None)


def secret(run: Run) -> Run:
    """The run with a key from the operating system."""
    return dataclasses.replace(run, privacy=dataclasses.replace(run.privacy, noise_seed=None))


def run_with(form: str, **keys: object) -> Run:
    return secret(small_run(TASK, server_momentum=0.0, **FORMS[form], **keys))


def noise_of(session: Session, stop: int) -> np.ndarray:
    """What rounds without a reply add up to this one: their noise alone, in units of the plan's
    scale.
    """
    steps = []
    while session.server.t < stop:
        before = session.server.parameters
        after = session.server.release(session.server.new_sum(), [])
        steps.append((after - before).double().numpy())
    rate = float(session.run.to_dict()["server"]["learning_rate"])
    scale = rate * session.plan.noise_std / session.plan.users_per_round
    return np.array(steps).reshape(-1, DIMENSION) / scale


def continued(path: Path, run: Run, stops: list[int]) -> np.ndarray:
    """The noise of all rounds from where the run stands, a process for every stop."""
    parts = []
    for stop in stops:
        with fedmf.resume(run, path) if path.exists() else fedmf.start(run, path) as session:
            parts.append(noise_of(session, stop))
    return np.vstack(parts)


def matrix_of(path: Path, run: Run) -> np.ndarray:
    with fedmf.resume(run, path) as session:
        return session.plan.mechanism.factorization.materialize()


@pytest.mark.parametrize("every", [3])
@pytest.mark.parametrize("form", FORMS)
def test_noise_over_interruptions_is_that_of_the_plan(
    tmp_path: Path, form: str, every: int
) -> None:
    """Stopped after 4, 5 and 9 rounds; with states kept in every third round, rounds are lost each
    time.
    """
    run = run_with(form, checkpoint_every=every)
    noise = continued(tmp_path / "run", run, [4, 5, 9, ROUNDS])
    C = matrix_of(tmp_path / "run", run)
    assert covariance_fits(noise, C, 1.0)
    assert not covariance_fits(noise * 1.1, C, 1.0), "a wrong sigma must be rejected"


@pytest.mark.parametrize("form", FORMS)
def test_copies_release_through_the_stacked_matrix(tmp_path: Path, form: str) -> None:
    """Y = M⁻¹z with M = [[C11, 0, 0], [C21, C22, 0], [C21, 0, C22]] of all that both copies
    release.
    """
    run = run_with(form)
    common = continued(tmp_path / "a", run, [COPIED])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    branches = [continued(tmp_path / name, run, [8, ROUNDS]) for name in "ab"]
    C = matrix_of(tmp_path / "a", run)
    T = COPIED
    zero = np.zeros((ROUNDS - T, ROUNDS - T))
    M = np.block(
        [
            [C[:T, :T], np.zeros((T, 2 * (ROUNDS - T)))],
            [C[T:, :T], C[T:, T:], zero],
            [C[T:, :T], zero, C[T:, T:]],
        ]
    )
    assert covariance_fits(np.vstack([common, *branches]), M, 1.0)
    assert not covariance_fits(np.vstack([common, branches[0], branches[0]]), M, 1.0), (
        "the same noise twice"
    )


def test_a_checkpoint_of_another_branch_is_refused(tmp_path: Path) -> None:
    """Its digest is not on this branch's record; and were it, its noise would not be that of the
    openings.
    """
    run = run_with("banded inverse")
    continued(tmp_path / "a", run, [COPIED])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        continued(tmp_path / name, run, [7])
    with fedmf.resume(run, tmp_path / "b") as session:
        foreign = session.directory.ledger.state()
    with fedmf.resume(run, tmp_path / "a") as session:
        assert foreign is not None
        session.directory.ledger.state = lambda: foreign  # type: ignore[method-assign]
        optimizer = run.optimizer_source.build((), ROUNDS)
        ledger = session.directory.ledger
        key = session.directory.key
        server = PrivateServer(session.plan, ledger, key, torch.zeros(DIMENSION), optimizer)
        with pytest.raises(ValueError, match=r"opening_indices .of the saved noise. must be"):
            server.restore()
