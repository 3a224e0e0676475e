"""Noisy-FTRL carried out: replicas of the stochastic iteration, with and without clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from exact import Filter, Regression
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import t as student

from fedmf.matrices.arrays import Matrix, Vector

__all__ = ["Estimate", "Path", "estimate", "path", "slope", "stationary"]

_BLOCK = 512


@dataclass(frozen=True)
class Estimate:
    """A mean with half the width of its 95 % interval over replicas."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass(frozen=True)
class Path:
    """Suboptimality of replicas, shape (kept steps, replicas), and the share of clipped
    gradients.
    """

    suboptimality: Matrix
    clipped: float


def estimate(values: Vector) -> Estimate:
    """Mean and interval of independent replicas."""
    spread = float(values.std(ddof=1)) / np.sqrt(values.size)
    return Estimate(float(values.mean()), float(student.ppf(0.975, values.size - 1)) * spread)


def slope(places: Vector, values: Matrix) -> Estimate:
    """Of log values on log places; values of shape (places, replicas), a line fitted to each
    replica.
    """
    return estimate(np.polyfit(np.log(places), np.log(values), 1)[0])


def stationary(
    problem: Regression, noise: Filter, replicas: int, rng: np.random.Generator
) -> Vector:
    """Time averages of F − F* of each replica, after and over three of the slowest times."""
    wait = int(np.ceil(3.0 / problem.slowest))
    steps = list(range(wait, 2 * wait, 8))
    start = np.zeros(len(problem.eigenvalues))
    return path(problem, noise, start, steps, replicas, rng).suboptimality.mean(axis=0)


def path(
    problem: Regression,
    noise: Filter,
    start: Vector,
    keep: list[int],
    replicas: int,
    rng: np.random.Generator,
    variance: float | None = None,
    clip_norm: float = np.inf,
) -> Path:
    """F(θ_t) − F* at the steps to keep.

    Args:
        problem: eigenvalues, η, residual, ρ.
        noise: B.
        start: θ_0 in the eigenbasis.
        keep: steps, increasing.
        replicas: how many.
        rng: of inputs and noise.
        variance: σ²; that of ρ-zCDP with the limiting sensitivity and clip norm 1 if none is given.
        clip_norm: of gradients.
    """
    if variance is None:
        variance = noise.sensitivity_square() / (2.0 * problem.rho)
    eta = problem.learning_rate
    spectrum = problem.spectrum
    last = keep[-1]
    root = np.sqrt(spectrum)
    residual = np.sqrt(problem.residual)
    added = np.stack([_filtered(noise, last, spectrum.size, rng) for _ in range(replicas)], axis=1)
    added *= np.float32(eta * np.sqrt(variance))
    theta = np.tile(start, (replicas, 1))
    kept = np.empty((len(keep), replicas))
    clipped = 0
    place = 0
    inputs = noise_y = np.empty(0)
    for t in range(last):
        if (at := t % _BLOCK) == 0:
            inputs = rng.standard_normal((_BLOCK, replicas, spectrum.size), dtype=np.float32) * root
            noise_y = residual * rng.standard_normal((_BLOCK, replicas))
        x = inputs[at]
        error = np.einsum("rd,rd->r", x, theta) - noise_y[at]
        if np.isfinite(clip_norm):
            norms = np.abs(error) * np.sqrt(np.einsum("rd,rd->r", x, x))
            clipped += int((norms > clip_norm).sum())
            error = error * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))
        theta -= (eta * error)[:, None] * x
        theta -= added[t]
        if t + 1 == keep[place]:
            kept[place] = 0.5 * (theta**2 @ spectrum)
            place += 1
            if place == len(keep):
                break
    return Path(kept, clipped / (last * replicas))


def _filtered(
    noise: Filter, steps: int, dimension: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Σ_τ β_τ w_{t−τ} for w of unit variance, shape (steps, dimension)."""
    white = rng.standard_normal((steps, dimension), dtype=np.float32)
    if noise.exponent == 0.0:
        return white
    length = next_fast_len(2 * steps, real=True)
    response = np.asarray(rfft(noise.coefficients(steps), length), dtype=np.complex64)
    spectrum = np.asarray(rfft(white, length, axis=0)) * response[:, None]
    return np.asarray(irfft(spectrum, length, axis=0))[:steps]
