"""A run directory of a small run, without a session: made, filled, and made to fail."""

from __future__ import annotations

import errno
from pathlib import Path

import torch

from fedmf.noise.key import NoiseKey
from fedmf.runs.directory import RunDirectory
from fedmf.runs.header import RunHeader
from fedmf.runs.plan import Plan
from fedmf.runs.run import Run
from support.small_runs import small_run

DIMENSION = 3
RUN = small_run(users=4, cohort_size=2, rounds=6, epsilon=3.0, noise_seed=-1)


def planned(run: Run = RUN) -> Plan:
    optimizer = run.optimizer_source.build([(DIMENSION,)], run.cohorts.rounds)
    return Plan.of(run, optimizer, DIMENSION)


PLAN, RECORDED = planned(), RUN.to_dict()


def create(path: Path, key: NoiseKey | None = None) -> RunDirectory:
    return RunDirectory.create(path, RUN, PLAN, key or NoiseKey.from_os(), DIMENSION)


def commit(opened: RunDirectory, t: int, value: float) -> None:
    opened.ledger.opening()
    users = [f"u{(2 * t) % 4}", f"u{(2 * t + 1) % 4}"]
    opened.commit(t, users, torch.full((3,), value), {"velocity": torch.full((3,), -value)}, {"t": t + 1})


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def same(first: RunHeader, second: RunHeader) -> bool:
    return first.to_dict() == second.to_dict()
