"""Streams without a horizon: their standard errors beside those of the same mechanism with a known horizon.

    python simulations/moments/unbounded.py

Errors are exact, from the plans that `fedmf stream` makes: ε = 1, δ = 10⁻⁶, zero-out, ζ = 1, first moment.
Writes docs/results/unbounded-streams.md and unbounded-streams.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.streaming import Layout, Settings
from fedmf.streaming.plans import StreamPlan, plan_stream, unbounded

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "design"))
from pictures import RESULTS, Curves, draw

Array = NDArray[np.float64]
STEPS: Final = (100, 1000, 10_000)
FAR: Final = STEPS[-1]
#: L and g.
CUTS: Final = ((64, 2), (256, 2), (64, 8), (256, 8), (256, 16))
USERS: Final[dict[str, dict[str, Any]]] = {
    "k = 1": {"max_participations": 1},
    "k = 10, b = 32": {"max_participations": 10, "min_separation": 32},
    "k = 10, b = 1": {"max_participations": 10, "min_separation": 1},
}
MATRICES: Final[dict[str, dict[str, Any]]] = {
    "32 bands": {"mechanisms": ("banded-toeplitz",), "bands": 32},
    "256 bands": {"mechanisms": ("banded-toeplitz",), "bands": 256},
    "blt": {"mechanisms": ("blt",)},
}


def planned(rounds: int | None, **more: Any) -> StreamPlan:
    settings = Settings(
        norm_bound=1.0,
        epsilon=1.0,
        delta=1e-6,
        second="diagonal",
        rounds=rounds,
        unbounded=rounds is None,
        **more,
    )
    return plan_stream(settings, Layout(("x",), False, 1, None), rounds)


def errors(plan: StreamPlan, steps: Array | tuple[int, ...]) -> Array:
    return np.sqrt(plan.variances(0, np.array(steps, dtype=np.int64)))


def known(asked: dict[str, Any]) -> tuple[StreamPlan, Array]:
    """The plan with n = 10⁴, and errors at the ends of those with n = t, as many rows of a user as fit."""
    plans = []
    for n in STEPS:
        k, b = asked["max_participations"], asked.get("min_separation", n)
        fitting = {**asked, "max_participations": min(k, -(-n // b)), "min_separation": b}
        if "bands" in asked:
            fitting["bands"] = min(asked["bands"], n)
        plans.append(planned(n, **fitting))
    return plans[-1], np.array([errors(plan, (n,))[0] for plan, n in zip(plans, STEPS, strict=True)])


def row(name: str, own: Array, far: Array, most: float, mean: float) -> str:
    cells = [*(f"{value:.2f}" for value in (*own, *far)), f"{most:.2f}", f"{mean:.2f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def compared(name: str, plan: StreamPlan, far: StreamPlan, own: Array) -> str:
    every = np.arange(1, FAR + 1)
    ratio = errors(plan, every) / errors(far, every)
    mean = float(np.sqrt((errors(plan, every) ** 2).mean() / (errors(far, every) ** 2).mean()))
    at = np.array(STEPS)
    return row(name, errors(plan, STEPS) / own, ratio[at - 1], float(ratio.max()), mean)


def main() -> None:
    head = "own, t = 10² | 10³ | 10⁴ | far, t = 10² | 10³ | 10⁴ | far, largest | far, rms"
    lines = [
        "# Streams without a horizon",
        "",
        "`python simulations/moments/unbounded.py`",
        "",
        "Standard error of a prefix sum without a horizon, over that with a known one and the same kind of",
        "matrix; averages are these sums over t, so their ratios are the same. own: known n = t (with as",
        "many rows of a user as fit into n); far: known n = 10⁴. L: steps of the first segment; g: how much",
        "longer each next one is. fedmf takes L = 256, g = 8.",
        "",
        f"| users | matrices | L, g | {head} |",
        "|" + 11 * "---|",
    ]
    panels: dict[str, tuple[Curves, str, str]] = {}
    taken, at = (unbounded.FIRST, unbounded.GROWTH), np.unique(np.geomspace(1, FAR, 400).astype(int))
    for users, contract in USERS.items():
        for matrices, choice in MATRICES.items():
            asked = {**contract, **choice, "workloads": ("prefix",)}
            far, own = known(asked)
            curves: dict[str, list[tuple[float, float]]] = {}
            for unbounded.FIRST, unbounded.GROWTH in CUTS:
                plan, cut = planned(None, **asked), f"{unbounded.FIRST}, {unbounded.GROWTH}"
                lines.append(compared(f"{users} | {matrices} | {cut}", plan, far, own))
                ratio = errors(plan, at) / errors(far, at)
                curves[f"L, g = {cut}"] = list(zip(at.tolist(), ratio, strict=True))
            if users == "k = 10, b = 32" and matrices != "256 bands":
                panels[f"{users}, {matrices}"] = (curves, "t", "standard error over that with n = 10⁴")
    unbounded.FIRST, unbounded.GROWTH = taken
    lines += ["", "Workloads that forget, with one matrix for ever (k = 10, b = 32, 32 bands):", ""]
    lines += [f"| workload | {head} |", "|" + 9 * "---|"]
    for workload in ("exponential:0.9", "exponential:0.99", "window:10", "window:100"):
        asked = {**USERS["k = 10, b = 32"], **MATRICES["32 bands"], "workloads": (workload,)}
        far, own = known(asked)
        lines.append(compared(workload, planned(None, **asked), far, own))
    draw("unbounded-streams", panels)
    text = "\n".join([*lines, "", "![Ratios over time](unbounded-streams.png)", ""])
    print(text)
    (RESULTS / "unbounded-streams.md").write_text(text)


if __name__ == "__main__":
    main()
