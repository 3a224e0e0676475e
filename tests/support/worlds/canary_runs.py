"""Real runs in which every user is a canary: one run is as many trials as it has users."""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import fedmf
from fedmf.accounting import LeakageBound, leakage_bound
from fedmf.audit.canaries import SummedReleases
from fedmf.data import NumberedUsers
from fedmf.records import unguarded
from fedmf.rounds import SentMessage, watched_messages
from fedmf.runs import FunctionTask, Run
from fedmf.statements import Plan
from support.worlds.hostile import write_script
from support.worlds.observed import asked_users
from support.worlds.tasks import CANARIES, FUNCTION

#: Behaviours after which a user whose update does not depend on the model contributes nothing.
SILENT: Final = ("empty", "raise", "memory", "nan", "inf", "wrong-shape", "wrong-dtype", "wrong-rows")


def audit_canary_runs(
    run: Run, runs: int, confidence: float, on_run: Callable[[], None]
) -> tuple[LeakageBound, Plan, int]:
    """Part one of `audit_end_to_end`: the bound, the plan of the runs, and how many trials there were."""
    users, rng = run.task_source.users, np.random.default_rng(secrets.randbits(128))
    replaced = run.privacy.adjacency == "replace-one"
    inside, outside, plan = [], [], None
    configured = run.optimizer_source.build([(users,)], run.cohorts.rounds)
    optimizer = SummedReleases(configured.second_moment, configured.second_form)
    for _ in range(runs):
        heads = rng.random(users) < 0.5
        tails = rng.choice(["opposite"] if replaced else list(SILENT), size=users)
        with tempfile.TemporaryDirectory() as folder, unguarded():
            script = Path(folder) / "script.json"
            write_script(script, {u: str(tails[u]) for u in np.flatnonzero(~heads).tolist()})
            task = FunctionTask(FUNCTION, users, options=f"{CANARIES} {script}")
            execution = dataclasses.replace(run.execution, evaluate_every=run.cohorts.rounds, output_dir="")
            real = dataclasses.replace(run, task=task, optimizer=optimizer, execution=execution)
            sent: list[SentMessage] = []
            with watched_messages(sent.append):
                result = fedmf.simulate(real, Path(folder) / "run")
            plan = plan or fedmf.plan(real)
        models = {int(m.group): m.parameters for m in sent if m.kind == "train" and m.parameters is not None}
        released = [models[t].double().numpy() for t in sorted(models)] + [result.parameters.double().numpy()]
        statistic, asked = _statistics(plan, np.array(released), asked_users(sent), users)
        inside.append(statistic[asked & heads])
        outside.append(statistic[asked & ~heads])
        on_run()
    assert plan is not None  # at least one run
    with_user, without = np.concatenate(inside), np.concatenate(outside)
    return (
        leakage_bound(with_user, without, run.privacy.delta, confidence),
        plan,
        with_user.size + without.size,
    )


def _statistics(
    plan: Plan, models: NDArray[np.float64], asked: Sequence[frozenset[str]], users: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each user's statistic in units of the noise, and who was asked at all."""
    C = plan.mechanism.factorization.materialize()[: len(asked), : len(asked)]
    names = list(NumberedUsers(users))
    patterns = np.array([[name in cohort for name in names] for cohort in asked], dtype=np.float64)
    shifts = C @ patterns
    norms = np.linalg.norm(shifts, axis=0)
    whitened = C @ (np.diff(models, axis=0) * plan.cohorts.size)
    part = norms > 0
    statistic = np.zeros(users)
    statistic[part] = (shifts * whitened).sum(axis=0)[part] / norms[part] / plan.noise_std
    return statistic, part
