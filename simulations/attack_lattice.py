"""A lattice attack on released models: which of two worlds made them?

    python simulations/attack_lattice.py aggregator [--dimension 1000] [--repeats 100]
    python simulations/attack_lattice.py labels [--repeats 50]
    python simulations/attack_lattice.py integers [--repeats 100000]

Box–Muller makes a pair of normals of two random words. If a word has 32 bits, pairs lie on 2⁶⁴
points of the plane, and a released float tells in which small cell the pair was: its value less
the sum without noise, within half a unit in the last place. The attacker knows everything but the
key, so that it knows the sum in each of two worlds. It counts the points in the cells of both. A
cell without any excludes its world; otherwise the likelihood ratio of both, lattice and Gaussian,
decides. Mironov (2012) broke the Laplace mechanism this way.

`aggregator`: the first model of a `PrivateAggregator` that begins at zero; one user brings a
vector, or nothing. `labels`: the first model of a linear classifier, 784 × 10, that begins at
zero; one user's four labels are one or the other. `integers`: the released integers themselves, of
many rounds with 16 entries.

An attacker of a mechanism with (ε, δ) is right with probability at most (e^ε + δ)/(1 + e^ε). The
exit code is 1 if there were more right guesses than that allows (one-sided, level 10⁻⁶), or if a
lattice excluded one world in more than ten releases and was right each time: then the noise lies
on it.

References:
    Mironov (2012), "On significance of the least significant bits for differential privacy".
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

import fedmf
from fedmf.accounting.gaussian import certified_sigma
from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.mechanisms.closed_forms import identity
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.release.plan import Plan
from fedmf.runs.simulation import run_in_process
from fedmf.training import LocalTrainer, classification

Values = NDArray[np.float64]

EPSILON = 1.0
DELTA = 1e-6
CLASSES = 10
INPUTS = 784
EXAMPLES = 4
LEVEL = 1e-6
#: Cells with more points say next to nothing, and cells far out are those of words with more bits.
_MOST_POINTS = 64.0
_FARTHEST = 4.6


@dataclass(frozen=True)
class Lattice:
    """Where pairs of normals lie.

    Args:
        bits: of each of the two words of a pair.
        pairs: of a block of keystream: elements j and j + pairs of 2·pairs belong together.
    """

    bits: int
    pairs: int


#: Of the float noise of versions up to 0.3, and what the first words of integer noise would make.
OLD = Lattice(32, 8)
NEW = Lattice(64, 4)


@dataclass(frozen=True)
class Verdict:
    """What the attacker concludes.

    Args:
        guess: 0 or 1.
        excluded: worlds without a point in some cell.
    """

    guess: int
    excluded: tuple[bool, bool]

    @property
    def certain(self) -> bool:
        """Whether exactly one world is excluded."""
        return self.excluded[0] != self.excluded[1]


def cells(mean: NDArray[np.float32], size: float) -> tuple[Values, Values]:
    """Between what sums a released mean was: shape (d,) each."""
    value = mean.astype(np.float64)
    below = (value + np.nextafter(mean, np.float32(-np.inf)).astype(np.float64)) / 2
    above = (value + np.nextafter(mean, np.float32(np.inf)).astype(np.float64)) / 2
    slack = 1e-6 * (above - below)
    return (below - slack) * size, (above + slack) * size


def paired(values: Values, lattice: Lattice) -> tuple[Values, Values]:
    """The first and second of each pair."""
    whole = values.size // (2 * lattice.pairs) * 2 * lattice.pairs
    blocks = values[:whole].reshape(-1, 2, lattice.pairs)
    return blocks[:, 0].ravel(), blocks[:, 1].ravel()


def evidence(low: Values, high: Values, lattice: Lattice) -> tuple[float, bool]:
    """Log-likelihood of a world under the lattice less that under continuous noise.

    Args:
        low: of each cell of standard normals.
        high: its other end.
        lattice: of the pairs.

    Returns:
        It, and whether the world is excluded.
    """
    a0, b0 = paired(low, lattice)
    a1, b1 = paired(high, lattice)
    inside = (a0 * a1 > 0) & (b0 * b1 > 0)
    near_a = np.minimum(abs(a0), abs(a1))
    far_a = np.maximum(abs(a0), abs(a1))
    near_b = np.minimum(abs(b0), abs(b1))
    far_b = np.maximum(abs(b0), abs(b1))
    square = (near_a * near_a + far_a * far_a + near_b * near_b + far_b * far_b) / 2
    points = 4.0**lattice.bits * (far_a - near_a) * (far_b - near_b)
    points = points * np.exp(-square / 2) / (2 * math.pi)
    total = 0.0
    for i in np.flatnonzero(inside & (points < _MOST_POINTS) & (square < _FARTHEST**2)):
        found = count(near_a[i], far_a[i], near_b[i], far_b[i], lattice.bits)
        if not found:
            return -math.inf, True
        total += math.log(found / points[i])
    return total, False


def count(a0: float, a1: float, b0: float, b1: float, bits: int) -> int:
    """The points of the lattice in [a0, a1] × [b0, b1], all positive."""
    size = 2.0**bits
    first = math.ceil(size * math.exp(-(a1 * a1 + b1 * b1) / 2) - 0.5)
    last = math.floor(size * math.exp(-(a0 * a0 + b0 * b0) / 2) - 0.5)
    radius = np.sqrt(-2 * np.log((np.arange(first, last + 1) + 0.5) / size))
    least = np.maximum(np.arccos(np.minimum(a1 / radius, 1)), np.arcsin(np.minimum(b0 / radius, 1)))
    most = np.minimum(np.arccos(np.minimum(a0 / radius, 1)), np.arcsin(np.minimum(b1 / radius, 1)))
    turns = size / (2 * math.pi)
    between = np.floor(most * turns - 0.5) - np.ceil(least * turns - 0.5) + 1
    return int(np.maximum(between, 0).sum())


def judge(
    between: tuple[Values, Values], worlds: Sequence[Values], std: float, lattice: Lattice
) -> Verdict:
    """Decide which world a noisy sum is from.

    Args:
        between: the ends of the cell of each entry.
        worlds: the sum without noise in either world.
        std: standard deviation of the noise in it.
        lattice: where the attacker thinks that pairs of normals lie.
    """
    low, high = between
    gaussian = []
    scores = []
    excluded = []
    for world in worlds:
        score, out = evidence((low - world) / std, (high - world) / std, lattice)
        noise = ((low + high) / 2 - world) / std
        gaussian.append(-float(noise @ noise) / 2)
        scores.append(score + gaussian[-1])
        excluded.append(out)
    if all(excluded):
        scores = gaussian
    return Verdict(int(scores[1] > scores[0]), (excluded[0], excluded[1]))


def first_std(plan: Plan) -> float:
    """The standard deviation of the noise in the sum of the first round."""
    return plan.noise_std * math.sqrt(float(plan.mechanism.factorization.noise_row_variances()[0]))


def exact_sum(rows: NDArray[Any] | torch.Tensor, clip_norm: float) -> Values:
    """Σ clip(x) as the package has it, without noise."""
    rows = torch.as_tensor(rows)
    total = ClippedSum(rows.shape[1], clip_norm)
    total.add_updates(rows)
    return total.total().numpy()


def aggregators(dimension: int, repeats: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Who brought a vector? The truth and verdicts of each run, for both lattices."""
    rng = np.random.default_rng(0)
    names = [f"u{i}" for i in range(8)]
    for _ in range(repeats):
        truth = int(rng.integers(2))
        x = rng.standard_normal(dimension).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            opened = fedmf.PrivateAggregator(
                fedmf.UserLevel(epsilon=EPSILON, delta=DELTA, clip_norm=1.0),
                fedmf.CyclicCohorts(rounds=4, users_per_round=4),
                users=names,
                run_dir=Path(folder, "run"),
            ).begin({"w": np.zeros(dimension, np.float32)})
            with opened:
                user = opened.cohort(0)[0]
                if truth:
                    opened.add(user, {"w": x})
                model = opened.release()["w"]
                plan = opened._open.plan
        worlds = [np.zeros(dimension), exact_sum(x[None], 1.0)]
        between = cells(model, 4)
        yield truth, [judge(between, worlds, first_std(plan), lattice) for lattice in (OLD, NEW)]


def task_of(features: torch.Tensor, labels: NDArray[np.int64]) -> fedmf.Task:
    """A linear classifier without bias that begins at zero; each user has four examples."""
    users = len(labels) // EXAMPLES
    model = torch.nn.Linear(INPUTS, CLASSES, bias=False)
    torch.nn.init.zeros_(model.weight)
    dataset = InMemoryDataset(
        features,
        torch.from_numpy(labels),
        tuple(np.arange(users * EXAMPLES).reshape(users, EXAMPLES)),
        tuple(f"u{i}" for i in range(users)),
        features[:2],
        torch.from_numpy(labels[:2]),
        classes=CLASSES,
    )
    return classification(dataset, model)


def label_runs(repeats: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Which labels has user 0? The truth and verdicts of each run, for both lattices."""
    rng = np.random.default_rng(1)
    users = 8
    ids = [f"u{i}" for i in range(users)]
    for _ in range(repeats):
        truth = int(rng.integers(2))
        features = torch.from_numpy(rng.random((users * EXAMPLES, INPUTS)).astype(np.float32))
        labels = rng.integers(0, CLASSES, users * EXAMPLES)
        changed = labels.copy()
        changed[:EXAMPLES] = (labels[:EXAMPLES] + rng.integers(1, CLASSES, EXAMPLES)) % CLASSES
        tasks = [task_of(features, each) for each in (labels, changed)]
        run = fedmf.Run(
            task=tasks[truth],
            cohorts=fedmf.CyclicCohorts(rounds=2, users_per_round=users),
            privacy=fedmf.UserLevel(epsilon=EPSILON, delta=DELTA, clip_norm=1.0),
            server=fedmf.Sgd(learning_rate=1.0, momentum=0.0),
            client=fedmf.LocalSGD(learning_rate=1.0, batch_size=EXAMPLES),
        )
        models: list[NDArray[np.float32]] = []

        def keep(*_: Any, models: list[NDArray[np.float32]] = models) -> None:
            models.append(session.server.parameters.numpy().copy())

        with (
            tempfile.TemporaryDirectory() as folder,
            fedmf.start(run, Path(folder, "run")) as session,
        ):
            run_in_process(session, keep)
            std = first_std(session.plan)
        worlds = []
        for task in tasks:
            trainer = LocalTrainer(task, run.client)
            rows: Any = trainer.updates(task.model.initial(), ids, 0)  # type: ignore[attr-defined]
            worlds.append(exact_sum(rows, 1.0))
        between = cells(models[0], users)
        yield truth, [judge(between, worlds, std, lattice) for lattice in (OLD, NEW)]


def integer_releases(repeats: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Was a vector in the sum of a round? The truth and verdicts of each round, for both
    lattices.
    """
    size = 16
    rng = np.random.default_rng(2)
    bits = 31
    sigma = certified_sigma(EPSILON, DELTA)
    std = sigma * 2.0**bits
    x = rng.standard_normal(size)
    rows, _ = clip_to_fixed_point(torch.from_numpy(x)[None], 1.0, bits)
    truths = rng.integers(2, size=repeats)
    totals = torch.from_numpy(truths)[:, None] * rows
    stream = NoiseStream(
        NoiseKey.from_os(),
        Domain.TRAINING,
        identity(repeats).streaming_inverse(),
        repeats,
        size,
        std,
    )
    stream.release_rows(totals)
    worlds = [np.zeros(size), rows[0].numpy().astype(np.float64)]
    for truth, released in zip(truths.tolist(), totals.numpy().astype(np.float64), strict=True):
        between = released - 0.5, released + 0.5
        yield truth, [judge(between, worlds, std, lattice) for lattice in (OLD, NEW)]


def allowed() -> float:
    """The largest probability of a right guess that ε and δ allow."""
    return (math.exp(EPSILON) + DELTA) / (1 + math.exp(EPSILON))


def report(found: Sequence[tuple[int, Sequence[Verdict]]]) -> bool:
    """Print what each lattice told; whether it is more than is promised."""
    refuted = False
    for place, lattice in enumerate((OLD, NEW)):
        verdicts = [(truth, each[place]) for truth, each in found]
        trials = len(verdicts)
        right = sum(verdict.guess == truth for truth, verdict in verdicts)
        certain = [truth == verdict.guess for truth, verdict in verdicts if verdict.certain]
        both = sum(all(verdict.excluded) for _, verdict in verdicts)
        chance = float(stats.binom.sf(right - 1, trials, allowed()))
        print(
            f"lattice of {lattice.bits} bits a word: right {right} of {trials} (allowed"
            f" {allowed():.3f}, a chance of {chance:.1e}); one world excluded in {len(certain)},"
            f" rightly in {sum(certain)}; both excluded in {both}"
        )
        refuted |= chance < LEVEL or (len(certain) > 10 and all(certain))
    return refuted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["aggregator", "labels", "integers"])
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    if options.what == "aggregator":
        found = list(aggregators(options.dimension, options.repeats))
    elif options.what == "labels":
        found = list(label_runs(options.repeats))
    else:
        found = list(integer_releases(options.repeats))
    refuted = report(found)
    print("REFUTED: more leaks than is claimed." if refuted else "no contradiction.")
    return int(refuted)


if __name__ == "__main__":
    sys.exit(main())
