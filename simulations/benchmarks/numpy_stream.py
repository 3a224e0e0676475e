"""Private running means and covariances of a table as a short NumPy program would make them, for
`stream.py`.

Prefix sums of clipped rows and of their squares x·xᵀ, with independent Gaussian noise for ε and δ
and one row a user: for ζ = 1 a row moves both sums together by at most √2. Mean and covariance by
division. No key, no record, no correlated noise, no users' histories: what a program has to do at
least for such releases.

With ``--block 1`` row by row, else whole blocks of rows by cumulative sums.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pyarrow as arrow
from pyarrow import csv, parquet
from scipy.optimize import brentq
from scipy.special import log_ndtr

NORM_BOUND = 1.0
EPSILON = 8.0
DELTA = 1e-5


def noise_multiplier(epsilon: float, delta: float) -> float:
    """σ of one Gaussian release of sensitivity 1."""

    def excess(sigma: float) -> float:
        a = 0.5 / sigma - epsilon * sigma
        b = -0.5 / sigma - epsilon * sigma
        return math.exp(log_ndtr(a)) - math.exp(epsilon + log_ndtr(b)) - delta

    sigma, _ = brentq(excess, 1e-3, 1e3, full_output=True)
    return float(sigma)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--block", type=int, default=1)
    options = parser.parse_args()
    read = csv.read_csv if options.source.suffix == ".csv" else parquet.read_table
    rows = np.column_stack([column.to_numpy() for column in read(options.source).columns])
    scale = noise_multiplier(EPSILON, DELTA) * math.sqrt(2.0)
    make = by_row if options.block == 1 else by_block
    means, covariances = make(rows, scale, options.every, options.block)
    d = rows.shape[1]
    upper = np.triu_indices(d)
    columns = {f"mean{i}": means[:, i] for i in range(d)}
    columns |= {f"cov{i}_{j}": covariances[:, i, j] for i, j in zip(*upper, strict=True)}
    parquet.write_table(arrow.table(columns), options.output)


def by_row(rows: np.ndarray, scale: float, every: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """One row after the other."""
    del block
    rng = np.random.default_rng(0)
    d = rows.shape[1]
    first = np.zeros(d)
    second = np.zeros((d, d))
    means = []
    covariances = []
    for t, row in enumerate(rows, 1):
        x = row * min(1.0, NORM_BOUND / math.sqrt(row @ row))
        noise = rng.standard_normal((d, d)) * scale
        first += x + rng.standard_normal(d) * scale
        second += np.outer(x, x) + np.triu(noise) + np.triu(noise, 1).T
        if t % every == 0:
            mean = first / t
            means.append(mean)
            covariances.append(second / t - np.outer(mean, mean))
    return np.array(means), np.array(covariances)


def by_block(
    rows: np.ndarray, scale: float, every: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative sums over blocks of rows."""
    rng = np.random.default_rng(0)
    d = rows.shape[1]
    first = np.zeros(d)
    second = np.zeros((d, d))
    means = []
    covariances = []
    for start in range(0, len(rows), block):
        part = rows[start : start + block]
        x = part * np.minimum(1.0, NORM_BOUND / np.linalg.norm(part, axis=1))[:, None]
        noise = rng.standard_normal((len(part), d, d)) * scale
        noise = np.triu(noise) + np.triu(noise, 1).swapaxes(1, 2)
        sums = first + np.cumsum(x + rng.standard_normal(x.shape) * scale, axis=0)
        squares = second + np.cumsum(x[:, :, None] * x[:, None, :] + noise, axis=0)
        first = sums[-1]
        second = squares[-1]
        t = np.arange(start + 1, start + len(part) + 1)
        shown = t % every == 0
        count = t[shown, None]
        mean = sums[shown] / count
        means.append(mean)
        covariances.append(squares[shown] / count[:, :, None] - mean[:, :, None] * mean[:, None, :])
    return np.concatenate(means), np.concatenate(covariances)


if __name__ == "__main__":
    main()
