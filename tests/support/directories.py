"""A run directory of a small run, without a session: made, filled, and made to fail."""

from __future__ import annotations

import errno
from pathlib import Path

import torch

from fedmf.ledger.packed import pack
from fedmf.noise.key import NoiseKey
from fedmf.release.plan import Plan
from fedmf.runs.directory import RunDirectory, RunHeader
from fedmf.runs.run import Run
from fedmf.runs.run_plan import plan_of
from support.small_runs import small_run

DIMENSION = 3
ARRAYS = (("w", (DIMENSION,)),)
RUN = small_run(users=4, cohort_size=2, rounds=6, epsilon=3.0, noise_seed=-1)


def planned(run: Run = RUN) -> Plan:
    optimizer = run.optimizer_source.build([(DIMENSION,)], run.cohorts.rounds)
    return plan_of(run, optimizer, DIMENSION)


PLAN = planned()
RECORDED = RUN.to_dict()


def create(path: Path, key: NoiseKey | None = None) -> RunDirectory:
    key = key or NoiseKey.from_os()
    return RunDirectory.create(path, RunHeader.of(RUN, PLAN, key, ARRAYS), key)


def commit(opened: RunDirectory, t: int, value: float) -> None:
    opened.ledger.opening()
    users = [f"u{(2 * t) % 4}", f"u{(2 * t + 1) % 4}"]
    optimizer = {"velocity": torch.full((3,), -value)}
    state = {"parameters": torch.full((3,), value), "optimizer": optimizer, "noise": {"t": t + 1}}
    opened.ledger.commit_round(t, users, pack(state))


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def same(first: RunHeader, second: RunHeader) -> bool:
    return first.to_dict() == second.to_dict()
