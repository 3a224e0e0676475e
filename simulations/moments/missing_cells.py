"""Means of a stream with missing cells: bias and coverage of the intervals, with the contract and without.

    python simulations/moments/missing_cells.py [--runs R] [--rows N]

Rows of two columns, temperature in −15..40 and humidity in 0..100, correlated, each of another user, ε = 8,
δ = 1e-5, running averages. Cells are missing in the column itself or in the other one, for 0, 10, 30, 60 % of
the rows, at random or where the column's own value is large. Truth is the mean of the valid rows. Cells are
encoded as the command encodes them; releases after the last row are drawn R times by the exact law of their
noise. Writes docs/results/missing-cells.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedmf.data import DataContract
from fedmf.moments import fieller
from fedmf.streaming import Layout, Settings, plan_stream

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SHARES = (0.0, 0.1, 0.3, 0.6)
COLUMNS = {
    "temperature": {"kind": "number", "lower": -15, "upper": 40, "may_be_missing": True},
    "humidity": {"kind": "number", "lower": 0, "upper": 100},
}


def population(rows: int, rng: np.random.Generator) -> np.ndarray:
    temperature = rng.normal(14, 6, rows)
    humidity = 70 - 1.2 * (temperature - 14) + rng.normal(0, 9, rows)
    return np.stack([temperature, humidity], axis=1)


def missing(x: np.ndarray, share: float, why: str, rng: np.random.Generator) -> np.ndarray:
    """Which rows lack a cell: at random, or those of the largest values with noise of half their spread."""
    if why == "at random":
        return rng.random(len(x)) < share
    ranked = x + 0.5 * x.std() * rng.standard_normal(len(x))
    return ranked > np.quantile(ranked, 1 - share) if share else np.zeros(len(x), dtype=bool)


def planned(rows: int, counted: bool) -> tuple[Settings, float, float]:
    """(settings, √v and w of the last release)."""
    columns = {name: {**said, "may_be_missing": counted} for name, said in COLUMNS.items()}
    contract = DataContract.from_dict(columns)
    norm = contract.encoding().norm_bound
    settings = Settings(norm, 8.0, 1e-5, rounds=rows, data_contract=contract, second="diagonal")
    names = settings.coordinates or ()
    plan = plan_stream(settings, Layout(names, False, len(names), None), rows)
    last = np.array([rows])
    return settings, float(np.sqrt(plan.variances(0, last)[0])), float(plan.row_sums(0, last)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2000)
    asked = parser.parse_args()
    settings, std, weight = planned(asked.rows, True)
    _, plain_std, _ = planned(asked.rows, False)
    encoding, c = settings.encoding, settings.count_weight
    assert encoding is not None
    lower, upper = encoding.bounds
    lines = [
        "# Missing cells",
        "",
        f"`python simulations/moments/missing_cells.py --runs {asked.runs} --rows {asked.rows}`",
        "",
        f"{asked.runs} streams a line, {asked.rows:,} rows each, ε = 8, δ = 1e-5, the last release.",
        "The temperature is released; cells are missing in it (own) or in the humidity beside it (other),",
        "at random or where the missing value is large. Truth: the mean of the valid rows. Counted:",
        "`may-be-missing = true`. Not counted: the same contract without, where such a row counts as the",
        "centre, 12.5 °C. Error: of the noise, as the release says it. z: mean of (released − truth)/error.",
        "Covered: share of 95 % intervals that hold the truth; for what is not counted, ±1.96 errors.",
        "",
        "| missing | in | why | truth, °C | counted: mean | error | z | covered, % | not counted: mean |"
        " error | z | covered, % |",
        "|" + 12 * "---|",
    ]
    rng = np.random.default_rng(0)
    for place, column in (("own", 0), ("other", 1)):
        for why in ("at random", "by value"):
            for share in SHARES:
                x = population(asked.rows, rng)
                gone = missing(x[:, column], share, why, rng)
                cells = [[f"{v:.4f}" for v in x[:, j]] for j in range(2)]
                for i in np.flatnonzero(gone):
                    cells[column][i] = ""
                z, valid = encoding.encode(cells)
                truth = float(np.clip(x[valid, 0], lower[0], upper[0]).mean())
                sums, count = z.mean(axis=0), float(valid.mean())
                noise = rng.normal(scale=std, size=(asked.runs, 3))
                found = fieller(
                    weight * sums + noise[:, :2],
                    c * weight * count + noise[:, 2],
                    np.full(asked.runs, std**2),
                    c,
                )
                centre, unit = encoding.centres[0], encoding.units[0]
                mean, error = centre + unit * found.mean[:, 0], unit * found.error[:, 0]
                low, high = centre + unit * found.low[:, 0], centre + unit * found.high[:, 0]
                held = (np.clip(low, lower[0], upper[0]) <= truth) & (
                    truth <= np.clip(high, lower[0], upper[0])
                )
                raw = (
                    centre + unit * (weight * sums[0] + rng.normal(scale=plain_std, size=asked.runs)) / weight
                )
                raw_error = unit * plain_std / weight
                raw_held = np.abs(raw - truth) <= 1.96 * raw_error
                lines.append(
                    f"| {100 * share:.0f} % | {place} | {why} | {truth:.2f} | {np.nanmean(mean):.2f} |"
                    f" {np.nanmedian(error):.2f} | {np.nanmean((mean - truth) / error):+.2f} |"
                    f" {100 * held.mean():.1f} | {raw.mean():.2f} | {raw_error:.2f} |"
                    f" {(raw - truth).mean() / raw_error:+.1f} | {100 * raw_held.mean():.1f} |"
                )
                print(lines[-1], flush=True)
    (RESULTS / "missing-cells.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
