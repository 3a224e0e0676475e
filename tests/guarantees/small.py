"""What the guarantees are tried on: small tasks, matrices by definition, one statistical test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

import fedmf
from fedmf.data import InMemoryDataset
from fedmf.runs.simulation import run_in_process
from fedmf.training import classification_task

Matrix = NDArray[np.float64]
#: Of a statistical test, all its comparisons together.
FALSE_ALARM = 1e-6
USERS = 24
COHORT = 6
ROUNDS = 12
NAMES = tuple(f"u{u:02d}" for u in range(USERS))
CLIP = 0.5


def _output(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs[..., 0]


def linear_task(rows: Matrix) -> fedmf.Task:
    """User u owns row x_u and the loss θ·x_u: whatever the model is, training moves it by −lr·x_u.

    The test part has label 1, which nobody else has.
    """
    features = torch.from_numpy(rows.astype(np.float32))
    model = nn.Linear(rows.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    none = torch.zeros(len(rows), dtype=torch.int64)
    owned = tuple(np.array([u]) for u in range(len(rows)))
    dataset = InMemoryDataset(
        features,
        none,
        owned,
        NAMES[: len(rows)],
        torch.ones_like(features[:2]),
        none[:2] + 1,
        classes=2,
    )
    return classification_task(dataset, model, _output)  # type: ignore[arg-type]


def random_rows(dimension: int, seed: int = 0) -> Matrix:
    """Of the users' rows some are longer than ζ and some shorter."""
    x = np.random.default_rng(seed).standard_normal((USERS, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * np.linspace(0.1, 2 * CLIP, USERS)[:, None]


def run_of(rows: Matrix, **changes: Any) -> fedmf.Run:
    """A run in which every user's update is its negated row: k = 3, b = 4."""
    values: dict[str, Any] = {
        "task": linear_task(rows),
        "cohorts": fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        "privacy": fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=7),
        "mechanism": "bisr",
        "server": fedmf.Sgd(learning_rate=1.0, momentum=0.0),
        "client": fedmf.LocalSGD(learning_rate=1.0, batch_size=4),
    }
    return fedmf.Run(**{**values, **changes})


def released_models(run: fedmf.Run, path: Path) -> Matrix:
    """θ_0, …, θ_n as released, shape (n + 1, d)."""
    with fedmf.start(run, path) as session:
        models = [session.server.parameters.double().numpy().copy()]
        run_in_process(
            session, lambda *_: models.append(session.server.parameters.double().numpy().copy())
        )
    return np.stack(models)


def clipped(x: Matrix, bound: float = CLIP) -> Matrix:
    return x * np.minimum(
        1.0, bound / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300)
    )


def bisr(rounds: int, bands: int) -> Matrix:
    """C of the banded inverse square root: C⁻¹ holds the first p coefficients of (1 − x)^(1/2)."""
    series = list(
        itertools.accumulate(range(1, rounds), lambda c, j: c * (j - 1.5) / j, initial=1.0)
    )
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    inverse = np.where((lags >= 0) & (lags < bands), np.array(series)[np.abs(lags)], 0.0)
    return np.linalg.inv(inverse)


def covariance_fits(noise: Matrix, C: Matrix, std: float) -> bool:
    """Whether C·noise/std, shape (n, d), is white: every entry of its Gram matrix within its
    quantiles.
    """
    white = C @ noise / std
    n, d = white.shape
    products = white @ white.T
    level = FALSE_ALARM / (n * (n + 1))
    squares = np.diag(products)
    cross = products[np.triu_indices(n, 1)]
    low = stats.chi2.ppf(level, d)
    high = stats.chi2.isf(level, d)
    fits = (low < squares).all() and (squares < high).all()
    return bool(fits and np.abs(cross).max(initial=0.0) < math.sqrt(d) * stats.norm.isf(level))


def patterns(n: int, k: int, b: int) -> Iterator[tuple[int, ...]]:
    """Every set of rounds that one user may take part in."""
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(n), size):
            if all(later - earlier >= b for earlier, later in itertools.pairwise(pattern)):
                yield pattern


def worst_norm(C: Matrix, k: int, b: int) -> float:
    """The largest ‖Σ_{t∈π} C_t s_t‖ over patterns π and signs s: what one user may add."""
    largest = 0.0
    for pattern in patterns(len(C), k, b):
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            total = C[:, pattern] @ np.array((1.0, *signs))
            largest = max(largest, float(np.linalg.norm(total)))
    return largest


def aggregator(
    path: Path, rounds: int = ROUNDS, noise_seed: int | None = 7, **changes: Any
) -> fedmf.PrivateAggregator:
    """One that is brought updates; 24 users, cohorts of 6."""
    values: dict[str, Any] = {
        "privacy": fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=noise_seed),
        "cohorts": fedmf.CyclicCohorts(rounds=rounds, users_per_round=COHORT),
        "users": NAMES,
        "run_dir": path,
        "mechanism": "bisr",
    }
    return fedmf.PrivateAggregator(**{**values, **changes})


def stream(path: Path, rounds: int, **changes: Any) -> fedmf.PrivateStream:
    """Prefix sums of rows and of their energies."""
    values: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "clip_norm": 1.0,
        "rounds": rounds,
        "workloads": "prefix",
        "second_moment": "trace",
        "mechanisms": "bisr",
        "seed": 5,
        "max_participations": 1,
    }
    return fedmf.PrivateStream(path, **{**values, **changes})
