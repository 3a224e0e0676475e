"""Finite time: Theorem D.11, rates in T at the best learning rate, and what can be stopped
anytime.
"""

from __future__ import annotations

import numpy as np
from drawing import EXACT, FTRL, SGD, Panel, points
from exact import DAMPED, WHITE, Regression, trajectory
from simulate import estimate, path

from fedmf.matrices.arrays import Vector

__all__ = ["anytime", "rates"]

SUBOPTIMALITY = "expected suboptimality"


def rates(steps: int) -> tuple[list[str], Panel]:
    """E[F(θ_T) − F*] at the best η for each T: 1/T for white noise, 1/T² for ν = ημ, and
    logarithms.
    """
    spectrum = 1.0 / np.arange(1.0, 9.0)
    etas = np.geomspace(1e-4, 0.2, 28)
    filters = [WHITE] * etas.size + [DAMPED(eta * float(spectrum.min())) for eta in etas]
    variances = np.array([f.sensitivity_square() / 2.0 for f in filters])
    keep = sorted({int(t) for t in np.geomspace(steps / 100, steps, 13)})
    start = np.full(spectrum.size, 1.0 / float(spectrum.sum()))
    found = trajectory(spectrum, np.tile(etas, 2), filters, variances, start, keep)
    white = found[: etas.size].min(axis=0)
    damped = found[etas.size :].min(axis=0)
    places = np.array(keep, dtype=np.float64)
    log = np.log(places)
    expected = log / places, (log * np.log(places / log) / places) ** 2

    def fitted(y: Vector) -> float:
        return float(np.polyfit(log, np.log(y), 1)[0])

    rows = [
        f"| {name}, slope in T | {paper:.2f} | {fitted(theory):.2f} | {fitted(y):.3f} |"
        for name, y, paper, theory in zip(
            (SGD, FTRL), (white, damped), (-1, -2), expected, strict=True
        )
    ]
    curves = {SGD: points(places, white), FTRL: points(places, damped)}
    return rows, (curves, "steps T", SUBOPTIMALITY)


def anytime(steps: int, replicas: int, seed: int) -> tuple[dict[str, list[str]], Panel]:
    """One run without a planned end, and Theorem D.11 along it; DP-FTRL with clipping carried
    out.
    """
    problem = Regression.decaying(128, 1.0, 0.02)
    start = np.full(128, np.sqrt(1.0 / float(problem.spectrum.sum())))
    keep = sorted({int(t) for t in np.geomspace(30, steps, 25)})
    places = np.array(keep, dtype=np.float64)
    filters = [WHITE, DAMPED(problem.slowest), DAMPED(0.0), DAMPED(0.0)]
    ends = (None, None, steps, steps // 10)
    variances = np.array(
        [f.sensitivity_square(end) / 2.0 for f, end in zip(filters, ends, strict=True)]
    )
    found = trajectory(
        problem.spectrum, np.full(4, problem.learning_rate), filters, variances, start**2, keep
    )
    initial = 0.5
    condition = 128.0
    rows = []
    held = []
    for name, noise, values in ((SGD, WHITE, found[0]), (FTRL, filters[1], found[1])):
        transient = np.sqrt(condition * np.exp(-problem.slowest * places) * initial)
        bound = (transient + np.sqrt(problem.limit(noise))) ** 2
        held.append(
            f"| {name} | {float((values / bound).max()):.3f} | {values[-1] / bound[-1]:.3f} |"
        )
    named = zip((SGD, FTRL, "ν = 0"), found, strict=False)
    lines = {f"{name}, {EXACT}": points(places, values) for name, values in named}
    clip = 12.0
    for at, (name, noise) in enumerate(((SGD, WHITE), (FTRL, filters[1]))):
        rng = np.random.default_rng([seed, 7, at])
        made = path(problem, noise, start, keep, replicas, rng, float(variances[at]), clip)
        shown = [estimate(row) for row in made.suboptimality]
        lines[name] = points(
            places, [value.mean for value in shown], [value.half_width for value in shown]
        )
        far = estimate(made.suboptimality[-6:].mean(axis=0) / found[at][-6:].mean())
        rows.append(
            f"| {name}, clipped at {clip:g} | {100 * made.clipped:.2g} % "
            f"| {far.mean:.3f} ± {far.half_width:.3f} |"
        )
    where = [int(np.argmin(abs(places - t))) for t in (100, 1000, steps / 10, steps)]
    table = [
        f"| {name} | " + " | ".join(f"{values[at]:.4f}" for at in where) + " |"
        for name, values in (
            (SGD, found[0]),
            (FTRL, found[1]),
            (f"ν = 0, noise for {steps:,} steps", found[2]),
            (f"ν = 0, noise for {steps // 10:,} steps; no budget after them", found[3]),
        )
    ]
    heads = "| | " + " | ".join(f"t = {keep[at]:,}" for at in where) + " |"
    tables = {"curves": [heads, "|---|---|---|---|---|", *table], "clipping": rows, "theorem": held}
    return tables, (lines, "step t", SUBOPTIMALITY)
