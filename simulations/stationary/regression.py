"""Figures 1 and 2: mean estimation, and the sweeps of linear regression with their slopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from drawing import EXACT, FTRL, LOWEST, SGD, Panel, points
from exact import DAMPED, WHITE, Filter, Regression
from simulate import estimate, slope, stationary

__all__ = ["SWEEPS", "Sweep", "mean_estimation", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """One panel of Figure 2.

    Args:
        name: of the panel.
        x: what is varied.
        places: on the x axis.
        problem: at a place.
        published: the paper's slopes of Noisy-SGD and ν-Noisy-FTRL; None where it gives none.
        tolerance: how far an exact slope may be from the paper's.
    """

    name: str
    x: str
    places: Sequence[float]
    problem: Callable[[float], Regression]
    published: tuple[float | None, float | None]
    tolerance: float = 0.03


def _effective(place: float) -> Regression:
    """The eigenvalues k^{−a} of 128 directions that have this effective dimension."""
    from scipy.optimize import brentq

    k = np.arange(1.0, 129.0)
    power = brentq(lambda a: float((k**-a).sum()) - place, 0.2, 1.5)
    return Regression.decaying(128, cast(float, power), 0.02)


def _tr(a: float) -> float:
    return float((np.arange(1.0, 129.0) ** -a).sum())


SWEEPS = (
    Sweep(
        "dimension",
        "d",
        (8, 16, 32, 64, 128),
        lambda d: Regression.decaying(int(d), 1.0, 0.02),
        (1.00, None),
    ),
    Sweep(
        "effective dimension",
        "d_eff",
        tuple(_tr(a) for a in (1.0, 0.8, 0.6, 0.4)),
        _effective,
        (0.18, 0.94),
    ),
    Sweep(
        "learning rate",
        "η",
        (0.02, 0.04, 0.08, 0.16),
        lambda eta: Regression.decaying(128, 1.0, eta),
        (1.27, 2.03),
    ),
)


def sweep(which: Sweep, replicas: int, seed: int) -> tuple[list[str], Panel]:
    """Rows of slopes, and the picture: points with intervals, exact values dashed."""
    places = np.array(which.places, dtype=np.float64)
    problems = [which.problem(float(place)) for place in places]
    algorithms: dict[str, Callable[[Regression], Filter]] = {
        SGD: lambda _: WHITE,
        FTRL: lambda problem: DAMPED(problem.slowest),
    }
    rows = []
    lines = {}
    for at, (name, noise) in enumerate(algorithms.items()):
        exact = np.array([problem.limit(noise(problem)) for problem in problems])
        rng = np.random.default_rng([seed, at])
        found = np.array(
            [stationary(problem, noise(problem), replicas, rng) for problem in problems]
        )
        estimates = [estimate(values) for values in found]
        lines[name] = points(places, found.mean(axis=1), [value.half_width for value in estimates])
        lines[f"{name}, {EXACT}"] = points(places, exact)
        paper = which.published[at]
        of_exact = float(np.polyfit(np.log(places), np.log(exact), 1)[0])
        gap = "" if paper is None else f"{of_exact - paper:+.3f}"
        shown = "" if paper is None else f"{paper:.2f}"
        ratio = estimate((found / exact[:, None]).mean(axis=0))
        rows.append(
            f"| {name}, slope in {which.x} | {shown} | {of_exact:.3f} | {gap} "
            f"| {slope(places, found)} | {ratio.mean:.3f} ± {ratio.half_width:.3f} |"
        )
    best = np.array([problem.best_limit() for problem in problems])
    of_best = float(np.polyfit(np.log(places), np.log(best), 1)[0])
    rows.append(f"| {LOWEST}, slope in {which.x} | | {of_best:.3f} | | | |")
    lines[f"{LOWEST}, {EXACT}"] = points(places, best)
    return rows, (lines, which.name, "suboptimality in the limit")


def mean_estimation(replicas: int, seed: int) -> tuple[list[str], dict[str, Panel]]:
    """The ratio of the optimal noise to white noise, exactly and carried out; coefficients and
    spectrum.
    """
    from scipy.signal import lfilter
    from scipy.special import ellipk

    etas = np.geomspace(1e-4, 1.0, 60)[:-1]

    def ratio(eta: float) -> float:
        # ∫dω/|1−η−e^{iω}| = 4K(k)/(2−η), k² = 4(1−η)/(2−η)²; white noise has 2π/√(η(2−η)) instead.
        mean_size = 4.0 * ellipk(4.0 * (1.0 - eta) / (2.0 - eta) ** 2) / (2.0 - eta) / (2.0 * np.pi)
        return float(mean_size**2 * eta * (2.0 - eta))

    rng = np.random.default_rng([seed, 99])
    rows = []
    tried = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
    means = []
    widths = []
    for eta in tried:
        steps = int(40 / eta) + 20_000
        beta = DAMPED(eta)
        white = rng.standard_normal((replicas, steps))
        colored = np.stack([_convolved(beta.coefficients(steps), row) for row in white])
        errors = [
            (
                np.asarray(lfilter([eta], [1.0, -(1.0 - eta)], noise, axis=1))[:, int(8 / eta) :]
                ** 2
            ).mean(axis=1)
            for noise in (white, colored)
        ]
        found = estimate(beta.sensitivity_square() * errors[1] / errors[0])
        means.append(found.mean)
        widths.append(found.half_width)
        asymptotic = eta * np.log(8.0 / eta) ** 2 * 2.0 / np.pi**2
        rows.append(
            f"| {eta:g} | {ratio(eta):.4f} | {found.mean:.4f} ± {found.half_width:.4f} "
            f"| {ratio(eta) / asymptotic:.3f} |"
        )
    errors = {
        FTRL: points(tried, means, widths),
        f"{FTRL}, {EXACT}": points(etas, [ratio(x) for x in etas]),
    }
    steps = np.arange(1.0, 51.0)
    omega = np.linspace(0.0, np.pi, 200)
    optimal = {f"optimal noise, η = {eta}": DAMPED(eta) for eta in (0.1, 0.01)}
    coefficients = {
        name: points(steps, -beta.coefficients(51)[1:]) for name, beta in optimal.items()
    }
    power = {
        name: points(omega, beta.power(omega)) for name, beta in {**optimal, SGD: WHITE}.items()
    }
    return rows, {
        "error of the mean": (errors, "learning rate η", "relative to independent noise"),
        "coefficients of the noise": (coefficients, "lag (steps)", "negated coefficient"),
        "spectrum of the noise": (power, "frequency ω", "power", ""),
    }


def _convolved(beta: np.ndarray, noise: np.ndarray) -> np.ndarray:
    from scipy.signal import fftconvolve

    return np.asarray(fftconvolve(noise, beta))[: noise.size]
