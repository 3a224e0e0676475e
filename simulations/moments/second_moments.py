"""JME (Kalinin, Upadhyay and Lampert 2025), Figures 1, 2, 3 and 7: expected errors, and who wins
where.

    python simulations/moments/second_moments.py

σ is the noise multiplier of the whole release: τ₁ = 2ζσ·sens(C) for every method (ζ = 1,
replace-one, k = 1). Errors are the exact expectations of `theory`, for the worst data where they
depend on it: for post-processing with C = I that is known, with the square root it lies between two
bounds, both drawn. Writes docs/results/moments-fig*.png and moments.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import identity, strategy_power
from fedmf.mechanisms.workload import ToeplitzWorkload, average, exponential, prefix, window
from fedmf.moments import METHODS, MomentMechanism, jme
from fedmf.participation import Participation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "design"))
import theory
from pictures import RESULTS, Curves, draw

Array = NDArray[np.float64]
Points = Sequence[tuple[float, ...]]
N = 1000
LEVELS = np.geomspace(1 / 512, 16, 53)
LINES = ["# Expected errors of the moments\n\n`python simulations/moments/second_moments.py`\n"]
TABLE = [
    (
        "\nThe σ from which the error of JME is below that of post-processing (PP); 0 means every σ"
        " shown. The"
    ),
    "error of PP with square-root noise lies between two bounds. [Figures](figures.md#jme)\n",
    "| figure | PP | JME | JME, not symmetrized |\n|---|---|---|---|",
]


def say(line: str) -> None:
    print(line)
    LINES.append(line)


def figure_1() -> None:
    """First against second error for d = 10, n = 100: λ-JME under IME and CS along the whole
    curve.
    """
    n = 100
    d = 10
    C = identity(n)
    once = Participation(n, 1, n)
    users = UserRange(1.0, d, "replace-one")
    A = prefix(n).materialize()

    def point(made: MomentMechanism) -> tuple[float, float]:
        first = theory.first_moment_errors(made, A, d).sum() ** 0.5
        return float(first), float(theory.second_moment_errors(made, A, d * d).sum() ** 0.5)

    curves = {
        "λ-JME": [point(jme(C, C, once, users, 1.0, float(w))) for w in np.geomspace(0.5, 50, 40)],
        "IME": [
            point(METHODS["ime"].mechanism([C], once, users, 1.0, float(a)))
            for a in np.linspace(0.02, 0.98, 40)
        ],
        "CS": [
            point(METHODS["cs"].mechanism([C], once, users, 1.0, float(t)))
            for t in np.geomspace(0.02, 50, 40)
        ],
    }
    shown = {
        "d = 10, 100 rounds, independent noise": (
            curves,
            "RMSE of the first moment",
            "RMSE of the second moment",
        )
    }
    draw("moments-fig1", shown, "y")
    own = sorted(curves["λ-JME"])
    for rival in ("IME", "CS"):
        ratios = [
            y / float(np.interp(x, [a for a, _ in own], [b for _, b in own]))
            for x, y in curves[rival]
            if own[0][0] <= x <= own[-1][0]
        ]
        say(
            f"* Figure 1: at equal first error the second error of {rival} is {min(ratios):.3f} to "
            f"{max(ratios):.3f} times that of λ-JME ({len(ratios)} points)."
        )


def crossing(own: Points, rival: Points) -> float:
    """The σ from which the first curve is below the second."""
    gaps = [(x, math.log(a / b)) for (x, a), (_, b) in zip(own, rival, strict=True)]
    for (x, gap), (x_next, following) in pairwise(gaps):
        if gap > 0 >= following:
            return x * (x_next / x) ** (gap / (gap - following))
    return 0.0 if gaps[0][1] <= 0 else math.inf


def say_crossings(title: str, curves: Curves) -> None:
    """A line of the table for each curve of post-processing."""
    own = [curves[name] for name in ("JME", "JME, not symmetrized") if name in curves]
    for name in (label for label in curves if label.startswith("PP")):
        found = [f"{crossing(points, curves[name]):.3g}" for points in own]
        TABLE.append(f"| {title} | {name} | {' | '.join([*found, ''][:2])} |")
        print(TABLE[-1])


def against_squaring(workload: ToeplitzWorkload, C: Factorization, d: int) -> Curves:
    """RMS error of Ŝ per released query, over σ."""
    A = workload.materialize()
    once = Participation(N, 1, N)
    users = UserRange(1.0, d, "replace-one")
    sens = sensitivity_of(C, once).value
    inverse = np.linalg.inv(C.materialize())
    Q = inverse @ inverse.T
    kernel = A.T @ A
    low, high = theory.squaring_supremum_bounds(C, A)
    square = float(np.sum(kernel * Q**2))
    bias = float(np.diag(Q) @ kernel @ np.diag(Q))
    unit = float(theory.second_moment_errors(jme(C, C, once, users, 1.0), A, 1).sum())
    packed = 1 if d == 1 else d * (d + 1) // 2
    curves: dict[str, list[tuple[float, float]]] = {"JME": [], "JME, not symmetrized": []}
    known = high < low * (1 + 1e-9)
    ends = (("", high),) if known else ((", at least", low), (", at most", high))
    for sigma in LEVELS:
        tau = 2 * sens * sigma
        curves["JME"].append((sigma, (packed * unit * sigma**2 / N) ** 0.5))
        curves["JME, not symmetrized"].append((sigma, (d * d * unit * sigma**2 / N) ** 0.5))
        for end, linear in ends:
            fair = 2 * (d + 1) * tau**2 * linear + d * (d + 1) * tau**4 * square
            curves.setdefault(f"PP debiased{end}", []).append((sigma, (fair / N) ** 0.5))
            curves.setdefault(f"PP{end}", []).append(
                (sigma, ((fair + d * tau**4 * bias) / N) ** 0.5)
            )
    if d == 1:
        del curves["JME, not symmetrized"]
    return curves


def square_root_of(workload: ToeplitzWorkload) -> Factorization:
    return strategy_power(workload, 0.5, N)


def panels(name: str, cases: dict[str, tuple[ToeplitzWorkload, Factorization, int]]) -> None:
    shown = {}
    for title, (workload, C, d) in cases.items():
        curves = against_squaring(workload, C, d)
        shown[title] = (curves, "noise multiplier σ", "RMSE of the second moment")
        say_crossings(f"{name[3:]}, {title}", curves)
    draw(f"moments-{name}", shown, "xy")


def figure_3() -> None:
    """Covariance with running averages and C = I, by Theorems 4.1 and 4.2 in absolute levels."""
    once = Participation(N, 1, N)
    shown = {}
    for d in (1, 100):
        A = average(N).materialize()
        C = identity(N)
        users = UserRange(1.0, d, "replace-one")
        equal = np.zeros((N, d))
        equal[:, 0] = 1.0
        turning = equal * (-1.0) ** np.arange(N)[:, None]
        packed = d * (d + 1) // 2
        curves: dict[str, list[tuple[float, float]]] = {}
        for sigma in LEVELS:
            made = jme(C, C, once, users, float(sigma))
            assert made.second_std is not None
            tau = made.first_std
            own = theory.covariance_errors(tau, made.second_std, C, C, A, equal, packed).sum()
            curves.setdefault("JME", []).append((sigma, (own / N) ** 0.5))
            # M = diag(a) − aaᵀ has ‖M‖² = 1/t − 1/t², and rows ±e₁ in turn reach the supremum
            # within O(t⁻³).
            steps = np.arange(1, N + 1)
            center = np.array([np.mean(np.var(turning[:t, 0])) for t in steps]) / steps
            other = 2 * (d + 1) * tau**2 * center + d * (d + 1) * tau**4 * (
                1 / steps - 1 / steps**2
            )
            curves.setdefault("PP debiased", []).append((sigma, (other.sum() / N) ** 0.5))
        title = f"running averages, d = {d}"
        shown[title] = (curves, "noise multiplier σ", "RMSE of the covariance")
        say_crossings(f"3, {title}", curves)
    draw("moments-fig3", shown, "xy")


def main() -> None:
    figure_1()
    sums = prefix(N)
    fading = exponential(0.9, N)
    sliding = window(10, N)
    panels(
        "fig2",
        {
            "d = 1, independent noise": (sums, identity(N), 1),
            "d = 1, square-root noise": (sums, square_root_of(sums), 1),
            "d = 1,000, independent noise": (sums, identity(N), 1000),
            "d = 1,000, square-root noise": (sums, square_root_of(sums), 1000),
        },
    )
    figure_3()
    panels(
        "fig7",
        {
            "decay 0.9, independent noise": (fading, identity(N), 100),
            "decay 0.9, square-root noise": (fading, square_root_of(fading), 100),
            "window of 10, independent noise": (sliding, identity(N), 100),
            "window of 10, square-root noise": (sliding, square_root_of(sliding), 100),
        },
    )
    (RESULTS / "moments.md").write_text("\n".join([*LINES, *TABLE]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
