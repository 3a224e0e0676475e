"""Configuration file, header and statement agree with each other: all are rendered from one run."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.pair_runs import RecordedPair, pair_run
from support.small_runs import linear_task

import fedmf
from fedmf import Run
from fedmf.accounting import NoPrivacy, UserLevel
from fedmf.cohorts import CyclicCohorts, MinSeparatedCohorts, RandomCohorts
from fedmf.data import Digits
from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.models import Mlp
from fedmf.moments import DiagonalMoment
from fedmf.optim import Adam
from fedmf.runs import Classification, Execution, NoiseMechanism, account, load_run, read_header
from fedmf.runs.directory import CONFIG
from fedmf.runs.outputs import STATEMENT
from fedmf.training import LocalSGD

TASK = linear_task(24, 6)
NAMED = Run(
    task=Classification(Digits(users=24, seed=5), Mlp(hidden_units=(8,))),
    cohorts=RandomCohorts(rounds=12, users_per_round=4, min_separation=2, seed=9),
    privacy=UserLevel(epsilon=2.5, clip_norm=0.7, delta=1e-6, adjacency="replace-one"),
    mechanism=NoiseMechanism(NamedMechanism("banded-toeplitz", {"bands": 3}), "momentum:0.9"),
    server=Adam(learning_rate=0.01),
    client=LocalSGD(epochs=2),
    execution=Execution(messages="per-user", evaluate_every=5),
)
CYCLIC = CyclicCohorts(rounds=12, users_per_round=6)
RUNS = {
    "values by name": NAMED,
    "without noise": dataclasses.replace(NAMED, privacy=NoPrivacy(clip_norm=0.7, noise_seed=3)),
    "public noise": dataclasses.replace(NAMED, privacy=UserLevel(noise_seed=3)),
    "a task and a factorization": Run(
        task=TASK, cohorts=CYCLIC, privacy=UserLevel(epsilon=3.0), mechanism=Toeplitz([1.0, 0.5, 0.25], 12)
    ),
    "an optimizer with a second moment": pair_run(RecordedPair(DiagonalMoment(6)), TASK, noise_seed=-1),
    "secret cohorts": Run(
        task=TASK,
        cohorts=MinSeparatedCohorts(rounds=12, users_per_round=3, min_separation=4),
        privacy=UserLevel(epsilon=1.0, delta=1e-2, amplified=True),
        mechanism=NamedMechanism("bsr", {"bands": 4}),
    ),
}


def recorded(path: Path, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tables and statement of a run that released three rounds, from their files."""
    with fedmf.start(run, path) as session:
        for _ in range(3):
            session.server.release(session.server.new_sum(), [])
        session.write_reports()
    return tomllib.loads((path / CONFIG).read_text()), json.loads((path / STATEMENT).read_text())


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_records_alone_give_the_same_run_and_statement(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "run"
    _, statement = recorded(path, run)
    assert account(path).to_dict() == statement
    task, optimizer = run.given_objects
    assert fedmf.load(path, task, optimizer).difference(run) is None
    before = read_header(path).to_dict()
    with fedmf.resume(run, path) as session:
        assert session.directory.header.to_dict() == before
        assert session.run.to_dict() == run.to_dict()
        assert session.statement().to_dict() == statement
    given = [part for part in (task, optimizer) if part is not None]
    if given:
        with pytest.raises(ConfigError, match=r"was given as an object \(.*\): pass the same one again"):
            fedmf.load(path)
        with pytest.raises(ConfigError, match=r"^\[task\] was given as an object \(.*\), which no con"):
            load_run(path / CONFIG)
    else:
        assert load_run(path / CONFIG).difference(run) is None
