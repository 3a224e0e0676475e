"""Tables 1, 2 and 4: limits over the expressions of the theory, which have to stay between two
constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from exact import ANTI_PGD, DAMPED, WHITE, Filter, Regression

__all__ = ["table1", "table2", "table4"]

DIMENSIONS = (16, 64, 256, 1024)
SPECTRA: dict[str, Callable[[int], np.ndarray]] = {
    "1": lambda d: np.ones(d),
    "1/√k": lambda d: np.arange(1.0, d + 1) ** -0.5,
    "k^−0.7": lambda d: np.arange(1.0, d + 1) ** -0.7,
    "1/k": lambda d: 1.0 / np.arange(1.0, d + 1),
    "k^−2": lambda d: np.arange(1.0, d + 1) ** -2.0,
    "k^−3": lambda d: np.arange(1.0, d + 1) ** -3.0,
    "(1, 1/d, …)": lambda d: np.append(1.0, np.full(d - 1, 1.0 / d)),
}


def problems(name: str) -> Iterator[Regression]:
    """Dimensions and learning rates c/Tr H."""
    for d in DIMENSIONS:
        values = SPECTRA[name](d)
        for c in (0.5, 0.1, 0.02):
            yield Regression(tuple(values.tolist()), c / float(values.sum()))


def spread(values: list[float]) -> str:
    """Least to largest."""
    return f"{min(values):.3g} – {max(values):.3g}"


def squared_log(problem: Regression) -> float:
    """log²(1/ημ)."""
    return math.log(1.0 / problem.slowest) ** 2


def table1() -> list[str]:
    """F∞ over the expression of each row, over all spectra, dimensions and learning rates."""
    every = [problem for name in SPECTRA for problem in problems(name)]
    size = {
        "best Toeplitz noise": [
            p.best_limit() / (p.learning_rate**2 * p.effective_dimension) for p in every
        ],
        "Noisy-SGD": [p.limit(WHITE) / (p.learning_rate * len(p.eigenvalues)) for p in every],
        "ν-Noisy-FTRL, ν = ημ": [
            p.limit(DAMPED(p.slowest))
            / (p.learning_rate**2 * p.effective_dimension * squared_log(p))
            for p in every
        ],
    }
    best = [p.limit(DAMPED(p.slowest)) / p.best_limit() for p in every]
    theory = ("Ω(η²ρ⁻¹d_eff)", "Θ(ηρ⁻¹d)", "O(η²ρ⁻¹d_eff log²(1/ημ))")
    rows = [
        f"| {name} | {expression} | {spread(values)} |"
        for (name, values), expression in zip(size.items(), theory, strict=True)
    ]
    return [
        *rows,
        (
            "| ν-Noisy-FTRL over the best Toeplitz noise | O(log²(1/ημ)) as a ratio |"
            f" {spread(best)} |"
        ),
    ]


def table2() -> list[str]:
    """Sensitivities by steps, and limits over their expressions."""
    long = [10**k for k in (2, 3, 4, 5, 6)]
    undamped = [DAMPED(0.0).sensitivity_square(T) / math.log(T) for T in long]
    one = Regression.decaying(128, 1.0, 0.02)
    nus = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
    mean_log = [DAMPED(nu).sensitivity_square() / math.log(1.0 / nu) for nu in nus]
    anti = [ANTI_PGD(0.0).sensitivity_square(T) / T for T in long]
    damped = [ANTI_PGD(nu).sensitivity_square() * nu for nu in nus]
    every = [problem for name in SPECTRA for problem in problems(name)]

    def root(p: Regression) -> Filter:
        return ANTI_PGD(math.sqrt(p.learning_rate * p.effective_dimension / len(p.eigenvalues)))

    limits = [
        p.limit(root(p))
        / (p.learning_rate**1.5 * math.sqrt(len(p.eigenvalues) * p.effective_dimension))
        for p in every
    ]
    grown = [
        one.limit(DAMPED(1e-9), DAMPED(0.0).sensitivity_square(T) / (2.0 * one.rho))
        for T in (10**3, 10**6)
    ]
    ftrl = [
        p.limit(DAMPED(p.slowest)) / (p.learning_rate**2 * p.effective_dimension * squared_log(p))
        for p in every
    ]
    return [
        (
            f"| ν = 0 (Fichtenberger et al.) | log T | {spread(undamped)} | ∞ | F at T = 10³ and"
            f" 10⁶: {grown[0]:.4g}, {grown[1]:.4g} (d = 128, 1/k, η = 0.02), like log T |"
        ),
        f"| ν-Noisy-FTRL | log(1/ν) | {spread(mean_log)} | η²ρ⁻¹Tr(H) log²(1/ν) | {spread(ftrl)} |",
        f"| anti-PGD | T | {spread(anti)} | ∞ | |",
        f"| anti-PGD, damped | 1/ν | {spread(damped)} | η^{{3/2}}ρ⁻¹√(d Tr H) | {spread(limits)} |",
    ]


def table4() -> list[str]:
    """By the decay of eigenvalues: limits over their expressions, the published ratio beside
    ours.
    """

    def effective(name: str, d: int) -> float:
        power = {"1/√k": 0.5, "k^−0.7": 0.7, "k^−2": 2.0, "k^−3": 3.0}.get(name)
        if power is None:
            return {"1": float(d), "1/k": math.log(d)}[name]
        return d ** (1.0 - power) / (1.0 - power) if power < 1 else power / (power - 1.0)

    rows = []
    for name in ("1", "1/√k", "k^−0.7", "1/k", "k^−2", "k^−3"):
        every = list(problems(name))
        d_eff = [p.effective_dimension / effective(name, len(p.eigenvalues)) for p in every]
        white = [p.limit(WHITE) / (p.learning_rate * len(p.eigenvalues)) for p in every]
        ours = [
            p.limit(DAMPED(p.slowest))
            / (
                p.learning_rate**2
                * effective(name, len(p.eigenvalues))
                * math.log((1.0 if name == "1" else len(p.eigenvalues)) / p.learning_rate) ** 2
            )
            for p in every
        ]
        ratio = [p.limit(DAMPED(p.slowest)) / p.limit(WHITE) for p in every]
        rows.append(
            f"| {name} | {spread(d_eff)} | {spread(white)} | {spread(ours)} | {spread(ratio)} |"
        )
    return rows
