"""Running means and covariances as `fedmf stream` releases them last, by the law of their noise.

Drawing takes d² numbers a run where the stream takes n·d²; tests/moments/test_density.py measures
that the law is that of the running stream.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedmf.matrices.arrays import Array
from fedmf.moments import NoisyMoments
from fedmf.streaming import Layout, Settings, StreamPlan


def planned(
    n: int, d: int, epsilon: float = 8.0, norm_bound: float = 1.0, **more: Any
) -> StreamPlan:
    """The plan of a stream of n rows, one a user, δ = 1e-5."""
    settings = Settings(clip_norm=norm_bound, epsilon=epsilon, delta=1e-5, rounds=n, **more)
    return StreamPlan.of(settings, Layout(tuple(map(str, range(d)))), n)


def released(plan: StreamPlan, rows: Array, runs: int, rng: np.random.Generator) -> NoisyMoments:
    """What so many independent streams of a plan with equal weights say of these rows after the
    last.
    """
    at = np.array([plan.rounds])
    weight = float(plan.row_sums(0, at)[0])
    v, v2 = (float(plan.variances(moment, at)[0]) / weight**2 for moment in (0, 1))
    covariance = np.cov(rows.T, bias=True).reshape(rows.shape[1], rows.shape[1])
    return drawn(rows.mean(axis=0), covariance, v, v2, runs, rng, plan.mechanism.users.norm_bound)


def drawn(
    mean: Array,
    covariance: Array,
    mean_variance: float,
    second_variance: float,
    runs: int,
    rng: np.random.Generator,
    norm_bound: float = 1.0,
    count_weight: float = math.inf,
) -> NoisyMoments:
    """m̂ and the unbiased Σ̂ of so many independent streams over rows with this mean and
    covariance, divided by a noisy count of them if this has a finite weight.
    """
    d = len(mean)
    noisy = mean + np.sqrt(mean_variance) * rng.normal(size=(runs, d))
    noise = np.triu(rng.normal(size=(runs, d, d)), 1) * np.sqrt(second_variance / 2)
    noise = noise + np.swapaxes(noise, 1, 2)
    index = np.arange(d)
    noise[:, index, index] = np.sqrt(second_variance) * rng.normal(size=(runs, d))
    second = covariance + np.outer(mean, mean) + noise
    if math.isinf(count_weight):
        count = np.ones(runs)
    else:
        count = 1 + np.sqrt(mean_variance) / count_weight * rng.normal(size=runs)
    noisy /= count[:, None]
    second /= count[:, None, None]
    levels = mean_variance / count**2, second_variance / count**2
    outer = noisy[:, :, None] * noisy[:, None, :]
    bias = levels[0][:, None, None] * (np.eye(d) + outer / count_weight**2)
    return NoisyMoments(noisy, second - outer + bias, *levels, norm_bound, count_weight)


def shortened(rows: Array, norm_bound: float) -> Array:
    """Rows scaled to the norm bound where they are longer."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * (norm_bound / np.maximum(norms, norm_bound))
