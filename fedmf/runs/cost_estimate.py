"""Guarantee and cost of a planned run, from its plan and synthetic examples.

No user's data are trained on, and nothing is written. Examples that are not in memory are loaded
for some users, to measure the time.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedmf.accounting.rounding import at_least, at_most
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.schedule import KeySchedule
from fedmf.release.noisy_sum import NoisyParts
from fedmf.release.plan import Plan
from fedmf.runs.run import Run
from fedmf.runs.run_plan import plan_of
from fedmf.runs.session import check_device, check_users_here
from fedmf.training import Task, preflight, seconds_of_loading, seconds_of_training

_ROUNDS: Final = 3
#: The largest noise of the mean update over a run, in units of ζ, with which a run learns well
#: (docs/choosing.md).
_LARGEST_GOOD: Final = 0.2
#: Measured bytes in memory of a user who took part, without the id, and of a participation.
_BYTES_PER_USER: Final = 170
_BYTES_PER_PARTICIPATION: Final = 24
#: Measured bytes in the ledger of a round without its participants; half a page is empty.
_ROW_BYTES: Final = 2500
#: User ids of which the length is taken.
_SOME_IDS: Final = 1000


class NoiseAndSignal:
    """The noise of a run, relative to the clip norm ζ, which bounds the mean update of a round.

    Args:
        plan: the plan of a run.
        dimension: d of its model.

    Attributes:
        words: one line at the beginning of a run: the norm of the noise of the sum of all n mean
            updates, relative to n·ζ, the largest norm of this sum.
        advice: what makes the noise small enough, if it is above a fifth of the clip norm; None
            otherwise.
        warning: the reason why a run hardly learns, with the advice; None if it may.
    """

    def __init__(self, plan: Plan, dimension: int) -> None:
        C = plan.mechanism.factorization
        n = plan.participation.rounds
        std = plan.noise_std / plan.clip_norm
        unit = math.sqrt(dimension) * std / plan.users_per_round
        of_sum = unit * math.sqrt(max(float(query_variances(C, prefix(n))[-1]), 0.0))
        of_all = of_sum / n
        share = f"{100 * of_all:,.1f} % of the largest possible sum of updates"
        good = f"{100 * _LARGEST_GOOD:.0f} %"
        self.words = (
            f"over the whole run, noise is {share} (runs learn well up to about {good}; how"
            " well depends on the task)"
        )
        self.advice: str | None = None
        self.warning: str | None = None
        if of_all > _LARGEST_GOOD:
            excess = of_all / _LARGEST_GOOD
            fewer = _two_digits(dimension / excess**2)
            more = _two_digits(plan.users_per_round * excess)
            self.advice = (
                f"noise is {share} at d = {dimension:,}; {good} with d = {fewer:,}, or with"
                f" {more:,} users per round and {excess:.2g} times as many users: train fewer"
                " parameters, or use more users per round (docs/choosing.md)"
            )
        if of_all > 1:
            self.warning = f"hardly anything can be learned: {self.advice}"


def _two_digits(value: float) -> int:
    """The number with two significant digits, at least 1."""
    return max(1, int(float(f"{value:.2g}")))


@dataclass(frozen=True)
class RoundSeconds:
    """The time of a round, without its commit.

    Args:
        training: seconds of local training and clipping on all threads.
        loading: seconds in which one thread loads the examples.
        noise: seconds of a row of noise.
        threads: how many threads train.
    """

    training: float
    loading: float
    noise: float
    threads: int

    @property
    def total(self) -> float:
        """Seconds of the round: one thread loads while all of them share the processor cores.

        >>> RoundSeconds(training=1.0, loading=0.5, noise=0.25, threads=2).total
        1.5
        >>> RoundSeconds(training=1.0, loading=3.0, noise=0.25, threads=2).total
        3.25
        """
        return max(self.loading, self.training + self.loading / self.threads) + self.noise


@dataclass(frozen=True)
class RecordSize:
    """Memory and disk of the record of who took part, and of the state of the server.

    Args:
        participations: n·m.
        users: how many users may take part at least once.
        id_bytes: bytes of a typical user id.
        rounds: n.
        state: bytes of a checkpoint.
        released: bytes of the integers that a round keeps; 0 without ``keep_releases``.
    """

    participations: int
    users: int
    id_bytes: int
    rounds: int
    state: int
    released: int

    @property
    def memory(self) -> int:
        """Bytes of the record in memory at the end of the run, when its statement is computed."""
        per_user = _BYTES_PER_USER + self.id_bytes
        return self.users * per_user + self.participations * _BYTES_PER_PARTICIPATION

    @property
    def disk(self) -> int:
        """Bytes of the ledger, two checkpoints and released integers.

        >>> RecordSize(10**7, 10**6, 12, 2000, 800_000, 0).disk
        59600000
        """
        ledger = 4 * self.participations + self.users * (self.id_bytes + 1)
        return ledger + self.rounds * (_ROW_BYTES + self.released) + 2 * self.state


def record_size(run: Run, plan: Plan, user_ids: Sequence[str], optimizer: int) -> RecordSize:
    """The size of the record of a run that all planned users join.

    Args:
        run: the run.
        plan: its plan.
        user_ids: of all users.
        optimizer: bytes of the optimizer's state.
    """
    rounds = run.cohorts.rounds
    participations = rounds * plan.users_per_round
    some_ids = [user_ids[u] for u in range(min(plan.users, _SOME_IDS))]
    released = 0
    if run.execution.keep_releases:
        released = 8 * plan.dimension
    return RecordSize(
        participations=participations,
        users=min(plan.users, participations),
        id_bytes=math.ceil(statistics.mean(len(user.encode()) for user in some_ids)),
        rounds=rounds,
        state=4 * plan.dimension + optimizer,
        released=released,
    )


def _bytes_of(state: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def dry_run(run: Run, device: str = "cpu") -> Iterator[tuple[str, str]]:
    """Yield privacy, noise, memory and time of a run, as label and text for people.

    The time comes last: it trains synthetic users of the declared structure, with as many examples
    as real ones, loads the examples of a few users unless all are in memory, evaluates the
    untrained model, and computes a few rows of noise under a temporary key. Nothing is written.

    Args:
        run: the planned run.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: the run cannot be executed.
    """
    task, plan = _planned(run, device)
    model = task.model
    n = run.cohorts.rounds
    contract = plan.participation
    noise = NoiseAndSignal(plan, model.dimension)
    params = "".join(f", {name} = {value:.4g}" for name, value in plan.mechanism.params.items())
    stored = plan.mechanism.factorization.streaming_inverse().memory_vectors
    yield "epsilon", _guarantee(run, plan)
    yield (
        "participation",
        (
            f"{n} rounds, at most {contract.max_participations} per user,"
            f" {contract.min_separation} apart;"
            f" {run.cohorts.users_per_round} of {plan.users} users per round"
        ),
    )
    yield "mechanism", f"{plan.mechanism.name}{params}"
    kind = plan.sensitivity.kind.replace("_", " ")
    yield "sensitivity", f"{at_least(plan.sensitivity.value)} ({kind})"
    yield (
        "noise",
        (
            f"multiplier {at_most(plan.noise_multiplier)}, standard deviation"
            f" {at_most(plan.noise_std)}"
        ),
    )
    yield "noise against updates", noise.words
    if noise.advice is not None:
        yield "small cohort", noise.advice
    yield "model", f"{model.dimension:,} parameters"
    rest = task.after_frozen_layers
    if rest is not task:
        features = rest.structure.features
        yield "frozen layers", f"features, {features}, are computed once for each user"
    if task.dataset.row_counts is not None:  # a dry run is the operator's
        yield from task.dataset.row_counts.lines()
    size = 8 * stored * model.dimension / 2**20
    yield "memory of noise", f"{size:,.1f} MiB: {stored} stored vectors"
    preflight(task, run.client, run.users_in_a_call)
    seconds = _seconds(run, task, plan, device)
    yield (
        "time of a round",
        (
            f"{1e3 * seconds.total:,.0f} ms: local training {1e3 * seconds.training:,.0f} on"
            f" made-up users, loading of examples {1e3 * seconds.loading:,.0f} on one thread, noise"
            f" {1e3 * seconds.noise:,.1f}"
        ),
    )
    evaluations = -(-n // run.execution.evaluate_every)
    untrained = model.initial().to(device)
    evaluation = min(timeit.repeat(lambda: task.evaluate(untrained), number=1, repeat=2))
    total = n * seconds.total + evaluations * evaluation
    yield (
        "time of the run",
        (
            f"{duration(total)}: {n} rounds, and {evaluations} evaluations of"
            f" {1e3 * evaluation:,.0f} ms; commits not counted"
        ),
    )
    optimizer = run.optimizer_source.build(model.shapes, n)
    state = _bytes_of(optimizer.init(untrained))
    record = record_size(run, plan, task.dataset.user_ids, state)
    memory = _peak_memory() + size + record.memory / 2**20
    yield (
        "memory of the process",
        f"{memory:,.0f} MiB: libraries, data, training, noise and record of participations",
    )
    yield (
        "disk",
        (
            f"{record.disk / 2**20:,.1f} MiB: ledger of {record.participations:,} participations,"
            " model and state"
        ),
    )
    yield "faster", _faster(device, seconds)


def duration(seconds: float) -> str:
    """Seconds as text in the unit that suits them.

    >>> duration(5.2), duration(600.0), duration(9000.0)
    ('5 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _peak_memory() -> float:
    """The largest memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak / 2**20
    return peak / 2**10


def _faster(device: str, seconds: RoundSeconds) -> str:
    """Advice that shortens a run, here and elsewhere."""
    from joblib import cpu_count

    if seconds.noise > max(seconds.training, seconds.loading):
        return "most of the time is noise: choose a mechanism with faster noise (fedmf design)"
    if seconds.loading > seconds.training:
        return "most of the time is loading of examples, on one thread: hold them in memory"
    cores = cpu_count()
    threads = torch.get_num_threads()
    advice = [f"{threads} of {cores} cores in use"]
    if device == "cpu" and threads < cores:
        advice.append(f"OMP_NUM_THREADS={cores} uses all")
    if device == "cpu" and torch.cuda.is_available():
        advice.append("--device cuda uses the GPU")
    elif device == "cpu":
        advice.append("no GPU here, which helps large models")
    advice.append("other machines: --engine ray")
    return "; ".join(advice)


def _guarantee(run: Run, plan: Plan) -> str:
    if not run.is_private:
        return "infinite: no noise"
    n = run.cohorts.rounds
    epsilon = at_least(plan.epsilon_after(n))
    text = f"{epsilon} at delta {at_least(plan.delta)}, {plan.adjacency} adjacency"
    if plan.amplification is not None:
        known = at_least(plan.known_epsilon_after(n))
        text += f" while cohorts stay secret; {known} against those who know them"
    return text


def seconds_of_a_round(run: Run, device: str = "cpu") -> float:
    """The approximate time of a round on this machine, from synthetic users and a row of noise.

    Raises:
        ConfigError: the run cannot be executed.
    """
    task, plan = _planned(run, device)
    preflight(task, run.client, run.users_in_a_call)
    return _seconds(run, task, plan, device).total


def _planned(run: Run, device: str) -> tuple[Task, Plan]:
    check_device(device)
    task = run.task_source.build()
    check_users_here(run, task)
    task = task.to(device)
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return task, plan_of(run, optimizer, task.model.dimension)


def _seconds(run: Run, task: Task, plan: Plan, device: str) -> RoundSeconds:
    """Measure the parts of a round on this machine."""
    keys = KeySchedule.constant(NoiseKey.from_os())
    noisy = NoisyParts(keys, Domain.TRAINING, plan.parts[0], plan.noise_of(0))
    total = torch.zeros(task.model.dimension, dtype=torch.int64, device=device)
    repeat = min(_ROUNDS, run.cohorts.rounds)
    rows = timeit.repeat(lambda: noisy.stream.release(total), number=1, repeat=repeat)
    training = seconds_of_training(
        task, run.client, run.cohorts.users_per_round, run.privacy.clip_norm
    )
    threads = 1  # in a row with a GPU
    if device == "cpu":
        threads = torch.get_num_threads()
    loading = seconds_of_loading(task, run.cohorts.users_per_round)
    return RoundSeconds(training, loading, statistics.median(rows), threads)
