"""Strange rows of three real data sets by a private density: areas under the curve and false
alarms.

    python simulations/moments/stream_anomalies.py [--runs R]

A stream sees ordinary rows; the density of its last release scores ordinary rows that it never saw
and strange ones. Releases are drawn by the exact law of their noise. Writes
docs/results/stream-anomalies.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from released_moments import planned, released, shortened
from scipy.stats import chi2, rankdata
from sklearn.datasets import load_breast_cancer

from fedmf.matrices.arrays import Array
from fedmf.moments import describe
from fedmf.streaming.private_release import alarm_threshold, calibrated_threshold

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fetch_data import table, wrist

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
EPSILONS = (1.0, 4.0, 8.0)
RATE = 0.01
CALIBRATED = 1000
#: Round ranges that are public knowledge of the measurements, not computed from the rows.
CANCER = (
    (5, 8, 40, 100, 0.05, 0, 0, 0, 0.1, 0.04),
    (30, 40, 200, 2600, 0.17, 0.4, 0.5, 0.2, 0.3, 0.1),
)
#: A departure two hours late, in the range of `fetch_data`.
LATE = 2 * (120 + 30) / 210 - 1
PAGE = """# Anomaly scores of private densities

`python simulations/moments/stream_anomalies.py`

{runs} splits and releases a row (mean; 10 % and 90 % quantiles of the area). Running averages,
zero-out adjacency, δ = 1e-5, `--weight density`, scores and thresholds as `PrivateRelease.score`
and `threshold` give them, on rows that no release is of. Columns are mapped to [-1, 1] from public
ranges.

* *Flights*: of 4,037 aircraft in 2013, delays, air time, distance (d = 4); at most 10 of each
  aircraft, 8 releases; strange: departures two hours late or more.
* *Wrist sensor*: seconds of rowing with an elastic band, deviations of six channels (d = 6); what
  is protected is a second; strange: other exercises.
* *Breast cancer*: ten measurements of benign cases, a patient each; strange: malignant.

False alarms at a stated rate of 1 %: *Gaussian*, the threshold for rows of a Gaussian, the noise of
the release counted in; *naive*, the quantile of χ² without it; *calibrated*, on up to
{calibrated:,} ordinary rows that need no protection (fewer than 99 cannot tell 1 %). Found: strange
rows above the calibrated one.

| data | rows seen | ε | area under the curve | false alarms, %: Gaussian | naive | calibrated | \
found |
|---|---|---|---|---|---|---|---|
"""


def cases() -> dict[str, tuple[Array, Array, float, dict[str, object]]]:
    """Ordinary and strange rows, their norm bound, and the contract of a user."""
    flights = table("flights")
    late = (flights["dep_delay"] >= LATE).to_numpy()
    few = (flights.groupby("tailnum").cumcount() < 10).to_numpy()
    delays = flights.iloc[:, 1:].to_numpy()
    seconds, exercises = wrist()
    cancer = load_breast_cancer()
    low, high = np.array(CANCER)
    cells = np.clip(2 * (cancer.data[:, :10] - low) / (high - low) - 1, -1, 1)
    by_aircraft = {"user_column": "tailnum", "max_participations": 10, "release_every": 3400}
    rowing = exercises == "ROW"
    return {
        "flights": (delays[few & ~late], delays[late], 2.0, by_aircraft),
        "wrist sensor": (seconds[rowing], seconds[~rowing], 6**0.5, {}),
        "breast cancer": (cells[cancer.target == 1], cells[cancer.target == 0], 0.5 * 10**0.5, {}),
    }


def area(ordinary: Array, strange: Array) -> float:
    """Chance that a strange row has the larger score."""
    ranks = rankdata(np.concatenate([ordinary, strange]))[len(ordinary) :]
    return float((ranks.mean() - (len(strange) + 1) / 2) / len(ordinary))


def distances(x: Array, mean: Array, covariance: Array) -> Array:
    return np.einsum("ni,ij,nj->n", x - mean, np.linalg.inv(covariance), x - mean)


def judged(held_out: Array, others: Array, gaussian: float) -> list[float]:
    """Area, false alarms at three thresholds, strange rows found, of scores."""
    half = min(CALIBRATED, len(held_out) // 2)
    calibrated = calibrated_threshold(max(RATE, 1 / (half + 1)), held_out[:half])
    limits = gaussian, float(chi2.isf(RATE, others[0])), calibrated
    rest = held_out[half:]
    strange = others[1:]
    return [
        area(rest, strange),
        *((rest > limit).mean() for limit in limits),
        (strange > calibrated).mean(),
    ]


def rows_of(
    ordinary: Array, strange: Array, bound: float, contract: dict[str, object], runs: int
) -> list[str]:
    d = ordinary.shape[1]
    n = int(0.7 * len(ordinary))
    ordinary = shortened(ordinary, bound)
    strange = shortened(strange, bound)
    plans = {e: planned(n, d, e, bound, weight="density", **contract) for e in EPSILONS}
    found: dict[float, list[list[float]]] = {epsilon: [] for epsilon in (*EPSILONS, np.inf)}
    for run in range(runs):
        rng = np.random.default_rng([run, d])
        order = rng.permutation(len(ordinary))
        seen = ordinary[order[:n]]
        held_out = ordinary[order[n:]]
        others = rng.permutation(strange)[:5000]
        for epsilon, plan in plans.items():
            raw = released(plan, seen, 1, rng)
            told = describe(raw)["density_covariance"][0]
            errors = raw.covariance_errors()[0]
            limit = alarm_threshold(RATE, told, np.full(d, raw.mean_variance[0] ** 0.5), errors)
            scores = [distances(x, raw.mean[0], told) for x in (held_out, others)]
            found[epsilon].append(judged(scores[0], np.array([d, *scores[1]]), limit))
        exact = seen.mean(axis=0), np.cov(seen.T, bias=True) + 1e-9 * np.eye(d)
        scores = [distances(x, *exact) for x in (held_out, others)]
        found[np.inf].append(judged(scores[0], np.array([d, *scores[1]]), float(chi2.isf(RATE, d))))
    lines = []
    for epsilon, values in found.items():
        mean = np.mean(values, axis=0)
        areas = np.array(values)[:, 0]
        of = f"{mean[0]:.3f} ({np.quantile(areas, 0.1):.2f}–{np.quantile(areas, 0.9):.2f})"
        name = "not private" if np.isinf(epsilon) else f"{epsilon:g}"
        lines.append(
            f"| {n:,} | {name} | {of} | " + " | ".join(f"{100 * x:.1f}" for x in mean[1:]) + " |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    text = PAGE.format(runs=runs, calibrated=CALIBRATED)
    for name, case in cases().items():
        for line in rows_of(*case, runs):
            print(name, line, flush=True)
            text += f"| {name} {line}\n"
    (RESULTS / "stream-anomalies.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
