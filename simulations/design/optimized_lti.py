"""Choquette-Choo et al. (2024), arXiv:2310.06771: how far ν-DP-FTRL is from the optimized LTI
noise.

    python simulations/design/optimized_lti.py

Asymptotic suboptimality at equal privacy of the identity (DP-SGD), the best ν-DP-FTRL and the
optimized LTI noise over the latter: exactly on quadratics whose d = 16 eigenvalues fall
geometrically from 1 to 1/κ, or are (1, 1/d, …, 1/d); and as the bound of Theorem 3.1 on functions
of condition number κ (the paper's Figure 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pictures import RESULTS, draw

from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.closed_forms import identity, nu_ftrl
from fedmf.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.mechanisms.registry import minimize_on_interval
from fedmf.mechanisms.strongly_convex import strongly_convex_bound, strongly_convex_lti

OPTIMAL = "optimized LTI"
DAMPED = "best ν-DP-FTRL"
WHITE = "DP-SGD"
Rows = list[tuple[str, float, float, float, float]]


def squared(C: Factorization) -> float:
    """The squared sensitivity of one participation."""
    return float(C.gram_diagonal(0)[0])


def on_quadratic(eigenvalues: np.ndarray, eta: float) -> dict[str, float]:
    n = int(12 / (eta * eigenvalues.min()))
    return judged(
        n,
        quadratic_lti(n, eigenvalues, eta),
        lambda C: quadratic_suboptimality(C, eigenvalues, eta) * squared(C),
    )


def on_strongly_convex(condition: float, eta: float) -> dict[str, float]:
    mu = 1.0 / condition
    n = int(12 * condition / eta)
    return judged(
        n,
        strongly_convex_lti(n, mu, 1.0, eta),
        lambda C: strongly_convex_bound(C, mu, 1.0, eta) * squared(C),
    )


def judged(
    n: int, optimal: Factorization, value: Callable[[Factorization], float]
) -> dict[str, float]:
    """Values of the three, ν searched."""

    def of_log(u: float) -> float:
        return value(nu_ftrl(float(np.exp(u)), n))

    damped = of_log(minimize_on_interval(of_log, float(np.log(1.0 / n)), 0.0, 9, 1e-2))
    return {OPTIMAL: value(optimal), DAMPED: damped, WHITE: value(identity(n))}


def main() -> None:
    rows: Rows = []
    panels = {}
    conditions = (2.0, 5.0, 10.0, 30.0, 100.0)

    def panel(
        title: str, xs: Sequence[float], label: str, of: Callable[[float], dict[str, float]]
    ) -> None:
        curves: dict[str, list[tuple[float, float]]] = {
            name: [] for name in (WHITE, DAMPED, OPTIMAL)
        }
        for x in xs:
            found = of(x)
            rows.append((title, x, found[WHITE], found[DAMPED], found[OPTIMAL]))
            for name, points in curves.items():
                points.append((x, found[name] / found[OPTIMAL]))
        panels[title] = (curves, label, "relative to the optimized noise")

    for eta in (0.5, 0.1):
        panel(
            f"quadratic, geometric spectrum, η = {eta}",
            conditions,
            "condition number κ",
            lambda x, eta=eta: on_quadratic(np.geomspace(1.0 / x, 1.0, 16), eta),
        )
    panel(
        "quadratic, spectrum (1, 1/d, …), η = 0.5",
        (2, 8, 32, 128),
        "dimension d",
        lambda d: on_quadratic(np.append(1.0, np.full(int(d) - 1, 1.0 / d)), 0.5),
    )
    for eta in (0.1, 1.0):
        panel(
            f"bound of Theorem 3.1, η = {eta}/L",
            conditions,
            "condition number κ",
            lambda x, eta=eta: on_strongly_convex(x, eta),
        )
    draw("optimized-lti", panels, "xy")
    write(rows)


def write(rows: Rows) -> None:
    lines = [
        "# Optimized LTI noise compared with ν-DP-FTRL and independent noise",
        "",
        (
            "Written by `simulations/design/optimized_lti.py`. Stationary suboptimality of gradient"
            " descent from"
        ),
        (
            "the noise alone, in units of (ζσ)² (per dimension for the bound), one participation"
            " per user."
        ),
        "",
        "![DP-SGD and the best ν-DP-FTRL relative to the optimized noise](optimized-lti.png)",
        "",
        "| problem | κ or d | optimized LTI | identity / LTI | best ν-DP-FTRL / LTI |",
        "|---|---|---|---|---|",
    ]
    for title, x, white, damped, optimal in rows:
        lines.append(
            f"| {title} | {x:g} | {optimal:.4g} | {white / optimal:.2f} | {damped / optimal:.3f} |"
        )
    (RESULTS / "optimized-lti.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
