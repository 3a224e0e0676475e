"""Streams of real rows: errors next to a single release and a lower bound, intervals,
methods.

    python simulations/moments/stream_answers.py

Writes docs/results/stream-answers.md, which says what each table is.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from released_moments import planned, released, shortened
from scipy.optimize import brentq, minimize_scalar

from fedmf.matrices.arrays import Array
from fedmf.moments import METHODS, MomentMechanism, MomentMethod, describe
from fedmf.streaming import StreamPlan, StreamState

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fetch_data import USERS, table

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "docs" / "results"
#: Rows of one aircraft, rows between two of them, rows of a release.
CAP = 50
APART = 300
EVERY = 3000
#: For intervals: the most rows of a user.
CAPS = {"flights": 10, "ratings": 20, "baseball": 20}
RUNS = 200
#: For methods: rows, one a user, each released.
ROWS = 1000
#: Weights are sought up to this logarithm of a ratio, either way.
LOG_RATIO = math.log(100)
PAGE = """# Errors and intervals of streams of real rows

`python simulations/moments/stream_answers.py`; data and their sources: `simulations/fetch_data.py`.
Columns are mapped to [-1, 1] from public ranges, δ = 1e-5, running averages.

## Flights: errors near the limit

327,346 flights of 4,037 aircraft, four columns, at most {CAP} of each, at least {APART} rows apart
({counted:,} count), a release every {EVERY:,} rows, zero-out, norm at most 2, the default λ, which
makes each mean's error √2 times that of a mean alone. Standard errors of the means, known without
noise; one-shot: a single release of all rows so far, at the same ε and cap. Correlations not 0: by
intervals that hold for all at once, with one seed.

| ε | final error | one-shot | ratio: final | last quarter | worst | correlations not 0 |
|---|---|---|---|---|---|---|
{flights}

**Lower bound** ([theorem](../theory/moments.md#a-lower-bound)): no mechanism that adds Gaussian
noise to linear combinations of the releases' sums does better. Root mean squares of the ratio to
one-shot:

| releases | over | this mechanism | any mechanism, at least |
|---|---|---|---|
{bounds}

The cap itself is a price: at ε = 1 a single release of k rows of each aircraft has these standard
errors, and leaves out this share of the flights (without a distance between rows). If the mean of
those differs by δ = 0.05 from that of the others, the error of the mean of *all* flights is the
last column: k = {best} is best.

| k | left out, % | one-shot error | with δ |
|---|---|---|---|
{caps}

## Intervals

{RUNS} streams over the same rows, drawn by the exact law of their noise, ε = 1, ten releases, the
last one. At most {cap_text} rows of a user. Share of 95 % intervals that hold the value of the
rows, and their mean width, over entries and runs; smallest eigenvalue of any covariance over its
trace.

| data | adjacency | mean: held, % | width | variance | width | correlation | width | shown, % | \
least |
|---|---|---|---|---|---|---|---|---|---|
{intervals}

## Methods

{ROWS:,} rows, one a user, every row released, ε = 4; root mean squared errors after the last row.
Each method at its weight of least error of the covariance, on the rows themselves (which a stream
may not do): `jme` λ, `ime` its split, `cs` τ. Errors of the mean, of the covariance, and of the
covariance where the mean's error may be at most 1.05 times that of a mean alone:

| data | adjacency | {names} |
|---|---|---|---|---|---|
{methods}
"""


def ratios(t: Array, errors: Array, plan: StreamPlan) -> tuple[Array, list[str]]:
    """Errors over those of a single release, and the cells that sum them up."""
    found = errors / [plan.one_shot_error(int(rows)) for rows in t]
    quarter = found[3 * len(found) // 4 :].mean()
    tenth = found[len(found) // 10 :].max()
    return found, [f"{found[-1]:.2f}", f"{quarter:.2f}", f"{tenth:.2f}"]


def command(folder: Path, *words: str) -> tuple[str, list[dict[str, Any]]]:
    """Screen and releases of a stream by the command, with a public seed."""
    out = folder / "released.jsonl"
    out.unlink(missing_ok=True)
    line = [sys.executable, "-m", "fedmf", "stream", "--output", str(out), "--delta", "1e-5"]
    child = subprocess.run(
        [*line, "--seed", "0", *words],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if child.returncode:
        raise SystemExit(child.stdout)
    return child.stdout, [json.loads(each) for each in out.read_text().splitlines()]


def flights() -> dict[str, Any]:
    rows = table("flights")
    lines = []
    columns = ",".join(rows.columns[1:])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows.to_csv(folder / "rows.csv", index=False)
        asked = [
            "--input",
            str(folder / "rows.csv"),
            "--columns",
            columns,
            "--user-column",
            "tailnum",
        ]
        asked += ["--min-separation", str(APART), "--rows-per-user", str(CAP)]
        asked += ["--release-every", str(EVERY), "--clip-norm", "2"]
        at_one: Any = None
        for epsilon in ("0.5", "1", "2", "4"):
            state = folder / f"state{epsilon}"
            text, told = command(folder, *asked, "--epsilon", epsilon, "--state-dir", str(state))
            with StreamState.open(state) as opened:
                plan = opened.plan
            at_one = plan if epsilon == "1" else at_one
            t = np.array([line["t"] for line in told])
            errors = np.array([np.max(line["mean_standard_error"]) for line in told])
            share = re.search(r"(\d+ of \d+) correlations", text)
            cells = [epsilon, f"{errors[-1]:.4f}", f"{plan.one_shot_error(int(t[-1])):.4f}"]
            cells += [*ratios(t, errors, plan)[1], share.group(1) if share else "none"]
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    counts = rows["tailnum"].value_counts().to_numpy()
    return {"flights": lines, "counted": plan.rounds, **bounds(plan), **caps(counts, at_one)}


def bounds(short: StreamPlan) -> dict[str, list[str]]:
    """Of the releases that there are, and of as many as all rows would give."""
    asked = {"user_column": "user", "max_participations": CAP, "min_separation": APART}
    whole = planned(327_346, 4, 1.0, 2.0, release_every=EVERY, **asked)
    lines = []
    for plan in (short, whole):
        t = np.minimum(np.arange(1, plan.releases + 1) * EVERY, plan.rounds)
        found, _ = ratios(t, np.sqrt(plan.variances(0, t)) / plan.row_sums(0, t), plan)
        for words, first in (("all", 0), ("the last quarter", 3 * plan.releases // 4)):
            steps = plan.mechanism.participation
            least = lower_bound(
                plan.releases, first, steps.max_participations, steps.min_separation
            )
            least *= plan.rows_of_user / CAP
            mine = float(np.sqrt(np.mean(found[first:] ** 2)))
            lines.append(f"| {plan.releases} | {words} | {mine:.2f} | {least:.2f} |")
            print(lines[-1], flush=True)
    return {"bounds": lines}


def lower_bound(n: int, first: int, k: int, b: int, steps: int = 200) -> float:
    """‖E M^½‖_*/√rows for rows `first`, … of the prefix sums E, by Frank and Wolfe over second
    moments M of patterns of k steps, b apart: any M gives a lower bound of sens(C)·‖E C⁻¹‖_F/√rows.
    """
    E = np.tril(np.ones((n, n)))[first:]
    rng = np.random.default_rng(0)
    M = np.zeros((n, n))
    least = 0.0
    for _ in range(2000):
        at = np.sort(rng.integers(0, n - (k - 1) * b, k)) + b * np.arange(k)
        M[np.ix_(at, at)] += 1 / 2000
    for step in range(steps):
        root = square_root(M + 1e-12 * np.eye(n))
        H = square_root(root @ E.T @ E @ root)
        least = max(least, float(np.trace(H)))
        inverse = np.linalg.inv(root)
        at = large_pattern(inverse @ H @ inverse, k, b)
        share = 2 / (step + 20)
        M *= 1 - share
        M[np.ix_(at, at)] += share
    return least / (n - first) ** 0.5


def square_root(M: Array) -> Array:
    values, vectors = np.linalg.eigh(M)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def large_pattern(G: Array, k: int, b: int) -> list[int]:
    """k steps, b apart, with a large sum of G over pairs: greedily from several starts."""
    best = -np.inf
    found = list[int]()
    for start in range(0, len(G), max(1, len(G) // 8)):
        at = [start]
        while len(at) < k:
            gain = 2 * G[:, at].sum(axis=1) + np.diag(G)
            for i in at:
                gain[max(0, i - b + 1) : i + b] = -np.inf
            if np.isneginf(gain.max()):
                break
            at.append(int(gain.argmax()))
        if (value := G[np.ix_(at, at)].sum()) > best:
            best = value
            found = at
    return found


def caps(counts: Array, plan: Any) -> dict[str, Any]:
    """One-shot errors for other caps, of a user's first rows."""
    noise = plan.one_shot_error(1)
    lines = []
    for k in (1, 2, 5, 10, 20, 50, 100, 200, int(counts.max())):
        kept = int(np.minimum(counts, k).sum())
        left = 1 - kept / counts.sum()
        error = k * noise / kept
        both = float(np.hypot(error, 0.05 * left))
        lines.append(f"| {k} | {100 * left:.0f} | {error:.4f} | {both:.4f} |")
    every = np.unique(counts)
    kept = np.array([np.minimum(counts, k).sum() for k in every])
    errors = np.hypot(every * noise / kept, 0.05 * (1 - kept / counts.sum()))
    return {"caps": lines, "best": int(every[errors.argmin()])}


def intervals() -> list[str]:
    lines = []
    for name, k in CAPS.items():
        rows = table(name)
        user = USERS[name]
        x = rows[(rows.groupby(user).cumcount() < k).to_numpy()].iloc[:, 1:].to_numpy()
        bound = x.shape[1] ** 0.5
        mean = x.mean(axis=0)
        covariance = np.cov(x.T, bias=True)
        correlation = np.corrcoef(x.T)
        upper = np.triu_indices(x.shape[1], 1)
        for adjacency in ("zero-out", "replace-one"):
            contract = {
                "user_column": user,
                "max_participations": k,
                "release_every": -(-len(x) // 10),
            }
            plan = planned(len(x), x.shape[1], 1.0, bound, adjacency=adjacency, **contract)
            moments = released(plan, x, RUNS, np.random.default_rng(k))
            told = describe(moments)
            told["mean_low"], told["mean_high"] = moments.mean_interval()
            cells = [name, adjacency]
            for field, true in (
                ("mean", mean),
                ("covariance", covariance),
                ("correlation", correlation),
            ):
                low = told[f"{field}_low"]
                high = told[f"{field}_high"]
                if field == "covariance":
                    low, high, true = (
                        np.diagonal(part, axis1=-2, axis2=-1) for part in (low, high, true)
                    )
                if field == "correlation":
                    low = low[:, *upper]
                    high = high[:, *upper]
                    true = true[upper]
                held = np.mean((low <= true) & (true <= high))
                cells += [f"{100 * held:.1f}", f"{np.mean(high - low):.3f}"]
            matrices = told["density_covariance"]
            share = np.isfinite(told["correlation"][:, *upper]).mean()
            least = np.min(
                np.linalg.eigvalsh(matrices)[:, 0] / np.trace(matrices, axis1=1, axis2=2)
            )
            lines.append("| " + " | ".join([*cells, f"{100 * share:.0f}", f"{least:.1e}"]) + " |")
            print(lines[-1], flush=True)
    return lines


def methods() -> list[str]:
    lines = []
    for name in CAPS:
        rows = table(name)
        x = rows.groupby(USERS[name], sort=False).head(1).iloc[:ROWS, 1:].to_numpy()
        n, d = x.shape
        x = shortened(x, d**0.5)
        for adjacency in ("zero-out", "replace-one"):
            plan = planned(n, d, 4.0, d**0.5, adjacency=adjacency)
            A = plan.workloads[0].materialize()
            C = plan.mechanism.first
            q = float(np.sum(np.linalg.solve(C.materialize().T, A[-1]) ** 2))

            def error(
                made: MomentMechanism, x: Array = x, C: Array = C.materialize(), q: float = q
            ) -> float:
                """Root of E‖Σ̂ − Σ‖² after the last row (docs/theory/moments.md, Errors)."""
                n, d = x.shape
                if made.second_std is None:
                    inverse = made.first_std * np.linalg.inv(C)
                    centered = (inverse - inverse.mean(axis=0)) / n
                    linear = np.sum((x.T @ centered) ** 2)
                    square = np.sum((inverse.T @ centered) ** 2)
                    return float(2 * (d + 1) * linear + d * (d + 1) * square) ** 0.5
                v = q * made.first_std**2
                v_2 = q * made.second_std**2
                means = np.sum(x.mean(axis=0) ** 2)
                return float(d * (d + 1) * (v_2 / 2 + v**2) + 2 * (d + 1) * v * means) ** 0.5

            cells = [name, adjacency]
            for method in METHODS.values():
                best, near = of_least_error(method, plan, error)
                of_mean = (d * q) ** 0.5 * best.first_std
                cells.append(f"{of_mean:.3f}, {error(best):.3f}, {error(near):.3f}")
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def of_least_error(
    method: MomentMethod, plan: StreamPlan, error: Callable[[MomentMechanism], float]
) -> tuple[MomentMechanism, MomentMechanism]:
    """The mechanism of least error over all weights, and over those with which the mean's error
    is at most 1.05 times that of a mean alone.
    """
    common = (
        [plan.mechanism.first],
        plan.mechanism.participation,
        plan.mechanism.users,
        plan.noise_multiplier,
    )
    alone = METHODS["pp"].mechanism(*common)
    if method.weight is None:
        return alone, alone
    is_share = method.weight.below == 1

    def made(log_ratio: float) -> MomentMechanism:
        """With so large a part of μ² for the second moment, over that for the first (zero-out)."""
        ratio = math.exp(log_ratio)
        weight = 1 / (1 + ratio) if is_share else ratio / plan.mechanism.users.norm_bound**2
        return method.mechanism(*common, weight)

    def least(most: float) -> MomentMechanism:
        found: Any = minimize_scalar(
            lambda x: error(made(x)), bounds=(-LOG_RATIO, most), method="bounded"
        )
        return made(found.x)

    limit: Any = brentq(lambda x: made(x).first_std / alone.first_std - 1.05, -LOG_RATIO, LOG_RATIO)
    return least(LOG_RATIO), least(limit)


def main() -> None:
    parts = {"methods": methods(), "intervals": intervals(), **flights()}
    told = {
        name: "\n".join(part) if isinstance(part, list) else part for name, part in parts.items()
    }
    cap_text = ", ".join(f"{k} ({name})" for name, k in CAPS.items())
    shared = {
        "CAP": CAP,
        "APART": APART,
        "EVERY": EVERY,
        "RUNS": RUNS,
        "ROWS": ROWS,
        "cap_text": cap_text,
    }
    shared["names"] = " | ".join(METHODS)
    (RESULTS / "stream-answers.md").write_text(PAGE.format(**told, **shared), encoding="utf-8")


if __name__ == "__main__":
    main()
