"""Numbers of a guarantee are printed outwards: never less ε than was spent or more noise than there
was.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
from support.headers import make_header, read, record

from fedmf.accounting.gaussian import certified_epsilon, certified_sigma, gaussian_mu, gaussian_rho
from fedmf.accounting.rounding import at_least, at_most, double_at_least


def doubles() -> list[float]:
    """Of every size, beside short decimals, beside powers of ten, and special ones."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.uniform(-60, 60, 3000)).tolist()
    short = [
        float(f"{digits}e{power}")
        for digits in rng.integers(1, 10**6, 300)
        for power in (-9, -5, 0, 4)
    ]
    beside = [
        math.nextafter(x, end)
        for x in [*short, 1.0, 10.0, 999999.5, 1e-5]
        for end in (0.0, math.inf)
    ]
    return [*values, *short, *beside, 0.0, 5e-324, 2.0000004, 1.7e308]


def test_every_text_is_on_its_side_and_close() -> None:
    for value in doubles():
        for digits in (3, 4, 6):
            upper = at_least(value, digits)
            lower = at_most(value, digits)
            typed = Decimal(repr(value))
            assert Decimal(lower) <= typed <= Decimal(upper)
            assert float(lower) <= value <= float(upper)
            assert Decimal(upper) - Decimal(lower) <= typed * Decimal(10) ** (1 - digits)
            assert len(re.sub(r"[eE].*|\.|^0\.0*", "", upper).strip("0")) <= digits


def test_doubles_of_mu_and_rho_are_not_below_the_exact_values() -> None:
    rng = np.random.default_rng(1)
    for sigma in np.exp(rng.uniform(-5, 5, 2000)).tolist():
        mu = Fraction(gaussian_mu(sigma))
        rho = Fraction(gaussian_rho(sigma))
        assert mu * Fraction(sigma) >= 1 > Fraction(math.nextafter(float(mu), 0)) * Fraction(sigma)
        assert 2 * rho * Fraction(sigma) ** 2 >= 1
    assert gaussian_mu(0.5) == gaussian_rho(0.5) == 2.0
    assert double_at_least(Fraction(10) ** 400) == math.inf


def test_the_epsilon_asked_for_is_stated_exactly_where_the_noise_gives_it() -> None:
    for epsilon in (0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 7.81, 8.0, 50.0):
        for delta in (1e-9, 1e-5, 0.01):
            sigma = certified_sigma(epsilon, delta)
            stated = certified_epsilon(sigma, delta, epsilon)
            assert stated <= epsilon
            assert at_least(stated) == f"{epsilon:g}"
            assert (
                certified_epsilon(sigma * (1 - 1e-6), delta, epsilon) > epsilon
            )  # less noise: not stated


def test_the_doubles_of_metrics_and_statement_are_upper_bounds(tmp_path: Path) -> None:
    """δ at each stated ε, to 50 digits, from the recorded noise and the sensitivity of the rows
    released.
    """
    header = make_header()
    plan = header.plan
    for released in range(1, plan.participation.rounds + 1):
        folder = tmp_path / str(released)
        folder.mkdir()
        record(folder / "ledger.sqlite", header, [["a"], ["b"], [], ["a"], ["b"], []][:released])
        stated = read(folder / "ledger.sqlite")
        so_far = stated["epsilon"] if stated["epsilon_so_far"] is None else stated["epsilon_so_far"]
        for epsilon in (plan.epsilon_after(released), so_far):
            with mpmath.workdps(50):
                mu = 1 / mpmath.mpf(plan.multiplier_after(released))
                e = mpmath.mpf(epsilon)
                delta = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
                assert delta <= mpmath.mpf(plan.delta)
                assert delta > mpmath.mpf(plan.delta) * (1 - mpmath.mpf("1e-6"))
