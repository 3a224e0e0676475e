"""Runs trained side by side in one process: the same users from many models; no directories, no ledgers."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.accounting import DifferentialPrivacy, ExampleLevel
from fedmf.cohorts import CheckInCohorts, SampledCohorts
from fedmf.compiled import compiled
from fedmf.factorization import Recurrence
from fedmf.noise import BlockedNoise, Domain, GaussianSource, KeySchedule, NoiseKey, NoiseStream
from fedmf.noise.kernels import Row, TileWork, fma, on_row
from fedmf.optim import RoundRelease, ServerPass, step_part
from fedmf.parts import FixedClipping
from fedmf.records import write_durably
from fedmf.runs import (
    CentralEvaluation,
    Run,
    Scalar,
    central,
    plan_run,
    require_single_examples,
    run_of,
)
from fedmf.runs.releases import second_stream, sums_for
from fedmf.statements import Plan
from fedmf.sweeps.one_run import columns_of
from fedmf.training import FRACTION_BITS, FixedPointSum, LocalTrainer, Task, preflight

#: Numbers of noise that are drawn ahead, of all runs of a batch together.
_AHEAD: Final = 1 << 23
#: Models that are trained side by side: their noise is small, and a stopped sweep loses no more than a batch.
MOST: Final = 64
#: Parameters of models that are held side by side, each with its velocity and its sum.
_HELD: Final = 1 << 25
#: Users of a group, so that calls are few, of models that are small enough (parameters) for a near cache.
_GROUP, _SMALL = 64, 1 << 14
_NONE: Final = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run trained beside others leaves.

    Attributes:
        parameters: the released model, shape (d,).
        metrics: rows by rounds released, as in the run's metrics table.
        failures: contributions that are zero because they failed.
        task: what was learnt.
    """

    parameters: Tensor
    metrics: Mapping[int, Mapping[str, Any]]
    failures: int
    task: Task


def hindrance(run: Run) -> str | None:
    """Why a run must be carried out by itself, in a few words; None if it can be trained beside others."""
    privacy, execution = run.privacy, run.execution
    noised = isinstance(privacy, DifferentialPrivacy)
    for reason, holds in {
        "its noise comes from a secret key": noised and privacy.noise_seed is None,
        "its cohorts come from a secret key": not noised and isinstance(run.cohorts, SampledCohorts),
        "it releases more than its model": tuple(map(type, run.parts)) != (FixedClipping,),
        "its users evaluate models": not isinstance(run.evaluation, CentralEvaluation),
        "its cohorts follow who comes": isinstance(run.cohorts, CheckInCohorts),
        "its budgets may end it early": noised and (privacy.max_epsilon or privacy.user_budgets),
        "its users are isolated": execution.isolation != "none",
        "every user has a message of its own": execution.messages != "slice",
        "its model begins with a file": bool(getattr(getattr(run.task, "model", None), "initial", "")),
    }.items():
        if holds:
            return reason
    return None


def batches(runs: Sequence[Run]) -> Iterator[list[int]]:
    """Places of runs that ask the same users in every round, at most `MOST` together.

    They differ in mechanism, noise, server optimizer and clip norm.
    """
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        shared = run.to_dict()
        shape = {name: shared[name] for name in ("task", "cohorts", "local", "execution")}
        seed = getattr(run.privacy, "noise_seed", None)
        key = [shape, str(run.participation), run.privacy.kind == "example-level", seed]
        found.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(place)
    for places in found.values():
        for first in range(0, len(places), MOST):
            yield places[first : first + MOST]


def train_together(runs: Sequence[Run]) -> list[Trained]:
    """Train a batch of runs to their horizon.

    A round trains its cohort once for each model, adds each run's own noise and makes its own step. The
    accountant, local training, audited sum, noise and server rule are those of the run alone; its directory,
    ledger, key file and statement are not made, so nothing here is a promise: noise comes from public seeds.

    Args:
        runs: a batch of `batches`, each without `hindrance`.

    Guarantees:
        Released models and metrics have the bits of the runs alone, on one machine.

    Raises:
        ConfigError: a run that cannot be executed.
        ValueError: a sum that no clipped updates have, a bug.
    """
    first = runs[0]
    task = first.task_source.build()
    if len(runs) > (most := max(1, _HELD // task.model.dimension)):
        return [*train_together(runs[:most]), *train_together(runs[most:])]
    if isinstance(first.privacy, ExampleLevel):
        require_single_examples(task)
    for clip_norm in {run.privacy.clip_norm for run in runs}:
        preflight(task, first.local, clip_norm)
    small = first.local.engine == "auto" and task.model.dimension <= _SMALL
    trainer = LocalTrainer(task, first.local, _GROUP if small else None, first.execution.user_limits)
    models = [_Model.of(run, task, len(runs)) for run in runs]
    plan, roster = models[0].plan, task.dataset.user_ids
    seed = models[0].keys.root.cohort_seed()
    schedule = first.cohorts.schedule(plan.users, plan.participation, seed)
    for model in models:
        model.evaluate(0)
    for t in range(plan.participation.rounds):
        users = [roster[user] for user in map(int, schedule.cohort(t))]
        totals = [model.new_sum() for model in models]
        if users:
            failures = trainer.add_updates_of_models([m.parameters for m in models], users, t, totals)
            for model, failed in zip(models, failures, strict=True):
                model.failures += len(failed)
        for model, total in zip(models, totals, strict=True):
            model.release(t, total)
    return [Trained(model.parameters, model.metrics, model.failures, task) for model in models]


@compiled
def _add_row(noisy, row, scale):
    """noisy ← noisy + scale·row, each rounded once."""
    for i in range(noisy.size):
        noisy[i] = fma(scale, row[i], noisy[i])


@compiled
def _step(integers, unit, row, scale, size, rule, parameters, velocity):
    """θ and v after a round, in place: `ServerPass.step` of unit·integers + scale·row."""
    noisy = np.empty(integers.size)
    for i in range(integers.size):
        noisy[i] = np.float64(integers[i]) * unit
    _add_row(noisy, row, scale)
    step_part(noisy, size, rule, parameters, velocity, parameters, velocity)


class _Ahead:
    """A `NoiseStream` of a whole vector whose rows are drawn many at a time; the same bits.

    Only for recurrences that scale no row: y_t is then drawn itself, and scale·y_t is added in one rounding
    as the stream does it.

    Args:
        stream: whose rows.
        rows: how many are drawn at once.
    """

    def __init__(self, stream: NoiseStream, rows: int) -> None:
        self._stream, self._rows, self._first = stream, rows, -1
        self.start, self.stop = stream.start, stream.stop
        self._t, self._drawn = 0, np.empty((0, 0))

    @staticmethod
    def suits(inverse: object) -> bool:
        """Whether there is one for a streaming form of C⁻¹."""
        if not isinstance(inverse, Recurrence) or bool((inverse.row_scale != 1.0).any()):
            return False
        return inverse.feedforward.shape[-1] > 1 or inverse.memory_vectors > 0

    def seek(self, t: int) -> None:
        """See `BlockedNoise.seek`."""
        self._t = t

    def blocks(self) -> Iterator[tuple[slice, _Ahead]]:
        """See `BlockedNoise.blocks`."""
        yield slice(self.start, self.stop), self

    def row(self, t: int) -> NDArray[np.float64]:
        """y_t."""
        place = t - self._first
        if self._first < 0 or not 0 <= place < len(self._drawn):
            drawn = torch.zeros(min(self._rows, self._stream.rounds - t), self.stop, dtype=torch.float64)
            self._stream.seek(t)
            self._stream.add_rows_(drawn, 1.0)
            self._drawn, self._first, place = drawn.numpy(), t, 0
        return self._drawn[place]

    def add_(self, out: Row, scale: float) -> None:
        """See `NoiseStream.add_`."""
        if isinstance(out, TileWork):
            on_row(out, self.row(self._t), scale)
        else:
            _add_row(out.numpy(), self.row(self._t), scale)
        self._t += 1

    def skip(self) -> None:
        """See `NoiseStream.skip`."""
        self._t += 1


@dataclass(eq=False)
class _Model:
    """One run of a batch: its plan, noise and model."""

    run: Run
    task: Task
    plan: Plan
    optimizer: Any
    keys: KeySchedule
    noise: Any
    parameters: Tensor
    state: Mapping[str, Tensor]
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: int = 0

    @classmethod
    def of(cls, run: Run, task: Task, runs: int) -> _Model:
        """Of a run among so many, at its beginning."""
        dimension = task.model.dimension
        optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
        plan = plan_run(run, optimizer, dimension, run.evaluation.ranges(task))
        seed = getattr(run.privacy, "noise_seed", None)
        keys = KeySchedule.constant(NoiseKey.from_seed(0 if seed is None else seed))
        source = GaussianSource(keys, dimension, Domain.TRAINING)
        inverse, rounds = plan.mechanism.factorization.recurrence(), plan.participation.rounds
        noise: Any
        if dimension <= ServerPass.part_on(torch.device("cpu")) and _Ahead.suits(inverse):
            stream = NoiseStream(source, inverse, rounds)
            noise = _Ahead(stream, max(1, min(rounds, _AHEAD // (runs * dimension))))
        else:
            noise = BlockedNoise(
                source,
                inverse,
                rounds,
                ServerPass.part_on(torch.device("cpu")),
            )
        initial = task.model.initial().clone()  # it changes in place
        return cls(run, task, plan, optimizer, keys, noise, initial, optimizer.init(initial))

    def __post_init__(self) -> None:
        self._sums = sums_for(
            self.optimizer, self.task.model.dimension, self.plan.privacy.clip_norm, self.plan.parts
        )
        self._second = second_stream(self.plan, self.optimizer, self.keys, torch.device("cpu"))
        self._variances = self.plan.mechanism.factorization.noise_row_variances()

    def new_sum(self) -> FixedPointSum:
        """Of no updates."""
        return self._sums.empty()

    def release(self, t: int, total: FixedPointSum) -> None:
        """Noise and step of round t, as `PrivateServer` makes them."""
        self._check(total)
        clip_norm = self.plan.privacy.clip_norm
        m, std = self.run.cohorts.size * self.plan.unit(clip_norm), self.plan.noise_std_at(clip_norm)
        whole = ServerPass(self.noise, m, std)
        rule = self.optimizer
        if ServerPass.steps(rule, self.parameters) and isinstance(self.noise, _Ahead):
            row = self.noise.row(t)
            unit = clip_norm * 2.0**-FRACTION_BITS
            velocity = self.state["velocity"].numpy() if self.state else _NONE
            into, integers = self.parameters.numpy(), total.fixed_point.numpy()
            _step(integers, unit, row, std, float(m), rule.numbers(t), into, velocity)
        elif ServerPass.steps(rule, self.parameters):
            self.parameters, self.state = whole.step(t, total, rule, self.parameters, self.state)
        else:
            mean = whole.mean(t, total, self.parameters)
            variance = (std / m) ** 2 * float(self._variances[t])
            release = RoundRelease(mean, variance, *self._second.release(t, total))
            self.parameters, self.state = rule.step(t, self.parameters, release, self.state)
        self.evaluate(t + 1)

    def _check(self, total: FixedPointSum) -> None:
        """Refuse a sum that no clipped updates have, as a server refuses it."""
        if len(total.parts) > 1:
            total.check_bounds()
            return
        norm = float(np.linalg.norm(total.fixed_point.numpy() * 2.0**-FRACTION_BITS))
        if norm > total.users:
            raise ValueError(f"sum must have norm at most {total.users} clip norms; got {norm:.6g}.")

    def evaluate(self, released: int) -> None:
        """The row of metrics, where one is due."""
        every, rounds = self.run.execution.evaluate_every, self.plan.participation.rounds
        if released % every and released != rounds:
            return
        epsilon = self.plan.epsilon_after(released)
        values = self.task.evaluate(self.parameters)
        self.metrics[released] = {
            **{central(name, self.task.dataset): value for name, value in values.items()},
            "epsilon": epsilon if math.isfinite(epsilon) else None,
        }


def keep_trained(
    runs: Sequence[tuple[Mapping[str, Scalar], Path]],
) -> None:
    """Train a batch of runs and keep the result row of each: all that is left of a run trained together.

    Args:
        runs: keys of each configuration, and the file for what is kept, which appears whole.

    Raises:
        Exception: as `train_together`; nothing is kept then.
    """
    begun, made = time.process_time(), [run_of(keys) for keys, _ in runs]
    trained = train_together(made)
    for (keys, finished), run, result in zip(runs, made, trained, strict=True):
        parameters = result.parameters.detach().contiguous().numpy()
        kept = {
            "keys": dict(keys),
            "metrics": result.metrics,
            "columns": columns_of(run, result.task),
            "statement": None,
            "failed_contributions": result.failures,
            "seconds": (time.process_time() - begun) / len(runs),
            "trained_together": len(runs),
            "model_sha256": hashlib.sha256(parameters.tobytes()).hexdigest(),
        }
        write_durably(finished, (json.dumps(kept) + "\n").encode())
