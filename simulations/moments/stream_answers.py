"""What a stream ends in: indefinite covariances, errors, coverage of intervals, held-out log-density.

    python simulations/moments/stream_answers.py [--runs R]

Rows of N(μ, Σ) with ‖μ‖² = 0.18, tr Σ = 0.08 and correlations 0.6^|i−j|, shortened to norm 1: for d = 2 close
to the example of docs/streaming.md. Each row is another user's; ε = 8, δ = 1e-5, running averages, `fedmf
stream` with its defaults and with --weight best. Releases after the last of n rows are drawn by the exact law
of their noise. Before: the unbiased covariance, which is what a release was. After: that of
`release.gaussian()`. Writes docs/results/stream-answers.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from released_moments import planned, released, shortened

from fedmf.moments import NoisyMoments, describe
from fedmf.typing import Array

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ROWS, DIMENSIONS, HELD_OUT = (100, 300, 1_000, 10_000), (2, 10, 30), 2_000
#: To which the unbiased covariance is projected where it must have a density.
FLOOR = 1e-3


def population(n: int, d: int, rng: np.random.Generator) -> Array:
    correlation = 0.6 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    rows = rng.multivariate_normal(np.full(d, np.sqrt(0.18 / d)), 0.08 / d * correlation, size=n)
    return shortened(rows, 1.0)


def log_densities(means: Array, covariances: Array, x: Array) -> Array:
    """Mean log-density of the rows x under each N(mean, covariance)."""
    L = np.linalg.cholesky(covariances)
    centred = np.linalg.solve(L, np.swapaxes(x - means[:, None, :], 1, 2))
    squares = (centred**2).sum(axis=1).mean(axis=1)
    logs = 2 * np.log(np.diagonal(L, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * (squares + logs + means.shape[1] * np.log(2 * np.pi))


def projected(raw: NoisyMoments) -> Array:
    values, vectors = np.linalg.eigh(raw.covariance)
    return (vectors * np.maximum(values, FLOOR)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


def row(adjacency: str, n: int, d: int, weight: str | None, runs: int) -> str:
    rng = np.random.default_rng([n, d])
    rows, held_out = population(n, d, rng), population(HELD_OUT, d, rng)
    raw = released(planned(n, d, adjacency=adjacency, weight=weight), rows, runs, rng)
    mean, covariance = rows.mean(axis=0), np.cov(rows.T, bias=True)
    said = describe(raw)
    after = said["density_covariance"]
    size = np.linalg.norm(covariance)
    errors = [
        np.sqrt(((found - covariance) ** 2).sum(axis=(1, 2)).mean()) for found in (raw.covariance, after)
    ]
    shares = [(np.linalg.eigvalsh(found)[:, 0] <= 0).mean() for found in (raw.covariance, after)]
    cover = [
        ((said[f"{name}_low"] <= true) & (true <= said[f"{name}_high"])).mean()
        for name, true in (("mean", mean), ("covariance", covariance))
    ]
    exact = float(log_densities(mean[None], covariance[None] + 1e-12 * np.eye(d), held_out)[0])
    mine = log_densities(said["density_mean"], after, held_out) - exact
    before = log_densities(raw.mean, projected(raw), held_out) - exact
    correlations = said["correlation"][:, *np.triu_indices(d, 1)]
    told = np.isfinite(correlations).mean()
    cells = [
        adjacency,
        "best" if weight else "default",
        f"{n:,}",
        str(d),
        f"{100 * shares[0]:.1f} → {100 * shares[1]:.1f}",
        f"{errors[0] / size:.2f} → {errors[1] / size:.2f}",
        f"{100 * cover[0]:.1f}",
        f"{100 * cover[1]:.1f}",
        f"{100 * told:.0f}",
        f"{np.median(before):.2f} → {np.median(mine):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    lines = [
        "# What a stream ends in",
        "",
        "`python simulations/moments/stream_answers.py`",
        "",
        f"{runs} runs a row, ε = 8, δ = 1e-5, after the last of n rows in the unit ball, each another",
        "user's; ‖μ‖² = 0.18, tr Σ = 0.08. Before → after: the unbiased covariance of a release → that of",
        "`release.gaussian()`. Indefinite: share of the runs. Error: root mean square of ‖Σ̂ − Σ‖_F/‖Σ‖_F.",
        "Coverage: share of entries and runs whose 95 % interval holds the value of the rows. Told: share of",
        "correlations that are not too noisy to say. Held out: median over runs of the mean log-density of",
        f"{HELD_OUT:,} further rows, less that of the density fitted without privacy, in nats a row; before",
        f"must be projected to have one, here to eigenvalues of at least {FLOOR:g}.",
        "",
        "| adjacency | weight | n | d | indefinite, % | error | mean covered, % | covariance covered, % |"
        " told, % | held out |",
        "|" + 10 * "---|",
    ]
    for adjacency in ("zero-out", "replace-one"):
        for weight in (None, "best"):
            for d in DIMENSIONS:
                for n in ROWS:
                    lines.append(row(adjacency, n, d, weight, runs))
                    print(lines[-1], flush=True)
    (RESULTS / "stream-answers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
