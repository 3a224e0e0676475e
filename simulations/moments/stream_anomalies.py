"""Anomaly scores of a private density: area under the curve, private against not, real data, ε = 1, 4, 8.

    python simulations/moments/stream_anomalies.py [--runs R]

A stream sees ordinary rows, one a user; its density after the last scores rows that it never saw: ordinary
ones held out and strange ones. Data that ship with scikit-learn, mapped from fixed public ranges to [-1, 1]
and shortened to a norm bound: breast cancer (ten mean measurements; strange: malignant), wine (thirteen;
strange: the third cultivar), iris (four; strange: virginica), digits (4x4 sums of 2x2 pixels; strange: 0).
δ = 1e-5, replace-one adjacency, --weight best. Splits and noise differ from run to run; the same split is
scored without privacy. Writes docs/results/stream-anomalies.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from released_moments import planned, released, shortened
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from fedmf.moments import NoisyMoments, PrivateGaussian
from fedmf.typing import Array

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
EPSILONS, TRAINED = (1.0, 4.0, 8.0), 0.7
#: Round ranges that are public knowledge of the measurements, not computed from the rows.
CANCER = (5, 8, 40, 100, 0.05, 0, 0, 0, 0.1, 0.04), (30, 40, 200, 2600, 0.17, 0.4, 0.5, 0.2, 0.3, 0.1)
WINE = (
    (11, 0.5, 1, 10, 70, 0.5, 0, 0, 0, 1, 0.4, 1, 250),
    (15, 6, 3.5, 30, 165, 4, 5.5, 0.7, 4, 13, 2, 4, 1700),
)


def scaled(rows: Array, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    bottom, top = np.array(low), np.array(high)
    return np.clip(2 * (rows - bottom) / (top - bottom) - 1, -1, 1)


def cases() -> dict[str, tuple[Array, Array]]:
    """Ordinary and strange rows of each, in [-1, 1]^d."""
    cancer, wine, iris, digits = load_breast_cancer(), load_wine(), load_iris(), load_digits()
    cells = scaled(cancer.data[:, :10], *CANCER)
    bottles = scaled(wine.data, *WINE)
    flowers = scaled(iris.data, (4, 2, 1, 0), (8, 4.5, 7, 2.5))
    blocks = digits.data.reshape(-1, 4, 2, 4, 2).sum(axis=(2, 4)).reshape(-1, 16) / 32 - 1
    return {
        "breast cancer, d = 10": (cells[cancer.target == 1], cells[cancer.target == 0]),
        "wine, d = 13": (bottles[wine.target < 2], bottles[wine.target == 2]),
        "iris, d = 4": (flowers[iris.target < 2], flowers[iris.target == 2]),
        "digits, not 0, d = 16": (blocks[digits.target > 0], blocks[digits.target == 0]),
    }


def area(ordinary: Array, strange: Array) -> float:
    """Chance that a strange row has the larger score."""
    ranks = rankdata(np.concatenate([ordinary, strange]))[len(ordinary) :]
    return float((ranks.mean() - (len(strange) + 1) / 2) / len(ordinary))


def scores(raw: NoisyMoments, held_out: Array, strange: Array) -> float:
    one = (raw.mean[0], raw.covariance[0], raw.mean_variance[0], raw.second_variance[0])
    density = PrivateGaussian(NoisyMoments(*one, raw.norm_bound))
    return area(density.score(held_out), density.score(strange))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    lines = [
        "# Anomaly scores of private densities",
        "",
        "`python simulations/moments/stream_anomalies.py`",
        "",
        "Area under the curve of `release.gaussian().score` on rows that the stream never saw: mean of",
        f"{runs} splits (10 % and 90 % quantiles). Running averages, replace-one adjacency, δ = 1e-5,",
        "`--weight best`; each row is another user's. Norm bound: half of √d. Without",
        "privacy: the same split, exact moments. Alone: distance from the middle of the public range, which",
        "needs no stream.",
        "",
        "| data | n | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " | without privacy | alone |",
        "|" + 7 * "---|",
    ]
    for name, (ordinary, strange) in cases().items():
        d, n = ordinary.shape[1], int(TRAINED * len(ordinary))
        bound = 0.5 * np.sqrt(d)
        ordinary, strange = shortened(ordinary, bound), shortened(strange, bound)
        found = {key: [] for key in (*EPSILONS, "exact", "alone")}
        plans = {e: planned(n, d, e, float(bound), adjacency="replace-one", weight="best") for e in EPSILONS}
        for run in range(runs):
            rng = np.random.default_rng([run, d])
            order = rng.permutation(len(ordinary))
            seen, held_out = ordinary[order[:n]], ordinary[order[n:]]
            for epsilon, plan in plans.items():
                found[epsilon].append(scores(released(plan, seen, 1, rng), held_out, strange))
            centre, covariance = seen.mean(axis=0), np.cov(seen.T, bias=True) + 1e-9 * np.eye(d)
            exact = [
                np.einsum("ni,ij,nj->n", x - centre, np.linalg.inv(covariance), x - centre)
                for x in (held_out, strange)
            ]
            found["exact"].append(area(*exact))
            found["alone"].append(area(*(np.linalg.norm(x, axis=1) for x in (held_out, strange))))
        cells = [
            f"{np.mean(v):.3f} ({np.quantile(v, 0.1):.2f}–{np.quantile(v, 0.9):.2f})" for v in found.values()
        ]
        lines.append(f"| {name} | {n} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    (RESULTS / "stream-anomalies.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
