"""ε, δ and σ of the Gaussian mechanism against high-precision arithmetic and the dp_accounting
library.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import dp_accounting
import mpmath
import pytest

from fedmf.accounting.gaussian import (
    certified_epsilon,
    certified_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_rho,
    gaussian_sigma,
)

EPSILONS = (1e-6, 1e-3, 0.1, 0.5, 1.0, 8.0, 40.0, 1e3)
DELTAS = (1e-15, 1e-12, 1e-8, 1e-5, 0.5)
GRID = tuple(itertools.product(EPSILONS, DELTAS))


def exact_delta(sigma: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        mu = 1 / mpmath.mpf(sigma)
        loss = mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - loss / mu) - mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)


def exact_root(function, start: float) -> float:
    with mpmath.workdps(60):
        return mpmath.findroot(function, start)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_sigma_is_exact_and_rounded_up(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta)
    target = mpmath.log(mpmath.mpf(delta))
    exact = exact_root(lambda x: mpmath.log(exact_delta(x, epsilon)) - target, sigma)
    assert 0 <= (sigma - exact) / exact <= 1e-10
    assert exact_delta(sigma, epsilon) <= delta
    assert gaussian_epsilon(sigma, delta) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_epsilon_is_exact_and_rounded_up(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta) * 0.9
    found = gaussian_epsilon(sigma, delta)
    target = mpmath.log(mpmath.mpf(delta))
    exact = exact_root(lambda x: mpmath.log(exact_delta(sigma, x)) - target, found)
    assert 0 <= found - exact <= 1e-10 * exact + 1e-13


def test_delta_matches_high_precision():
    for epsilon, delta in GRID:
        sigma = gaussian_sigma(epsilon, delta)
        assert gaussian_delta(sigma, epsilon) == pytest.approx(
            float(exact_delta(sigma, epsilon)), rel=1e-10
        )


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5), (30.0, 1e-10)]
)
def test_matches_dp_accounting(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta)
    assert sigma == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(sigma, delta), rel=1e-9)
    assert certified_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-9)
    assert certified_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("extreme", [5e-324, 1e-300, 1e-100, 1e100, 1e300, sys.float_info.max])
def test_extreme_inputs_end_in_a_number(extreme):
    for delta in (5e-324, 1e-5, math.nextafter(1.0, 0.0)):
        assert gaussian_sigma(extreme, delta) > 0
        assert gaussian_epsilon(extreme, delta) >= 0
    assert 0 <= gaussian_delta(extreme, 1.0) <= 1
    assert 0 <= gaussian_delta(1.0, extreme) <= 1


BAD = (0, -1.0, math.nan, math.inf, -math.inf, True, "8", None)


def test_refuses_bad_epsilon_and_sigma():
    for call in [
        lambda x: gaussian_sigma(x, 1e-5),
        lambda x: gaussian_epsilon(x, 1e-5),
        lambda x: gaussian_delta(x, 1.0),
        gaussian_mu,
        gaussian_rho,
        lambda x: certified_epsilon(x, 1e-5),
        lambda x: certified_sigma(x, 1e-5),
    ]:
        for bad in BAD:
            with pytest.raises(ValueError, match=r"must be .*; got"):
                call(bad)


def test_certification_refuses_when_accountants_disagree(monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", "off")  # what was said before is kept
    monkeypatch.setattr(
        dp_accounting, "get_epsilon_gaussian", lambda sigma, delta: 8.0 * (1 + 1e-5)
    )
    monkeypatch.setattr(dp_accounting, "get_sigma_gaussian", lambda epsilon, delta: math.nan)
    with pytest.raises(RuntimeError, match="accountants disagree"):
        certified_epsilon(gaussian_sigma(8.0, 1e-5), 1e-5)
    with pytest.raises(RuntimeError, match="accountants disagree"):
        certified_sigma(8.0, 1e-5)


def test_certification_takes_the_larger(monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", "off")
    monkeypatch.setattr(
        dp_accounting, "get_epsilon_gaussian", lambda sigma, delta: 8.0 * (1 + 1e-7)
    )
    assert certified_epsilon(gaussian_sigma(8.0, 1e-5), 1e-5) == 8.0 * (1 + 1e-7)


def test_a_very_large_epsilon_is_certified_without_a_warning() -> None:
    """Warnings are errors here; a header with such an ε is read by every command."""
    assert certified_sigma(1e9, 1e-5) == pytest.approx(1 / math.sqrt(2e9), rel=1e-3)


def test_what_the_other_accountant_said_is_kept_and_can_only_raise_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept number is compared like one that is computed, and is none of another question or
    version.
    """
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path))
    asked = list[tuple[float, ...]]()

    def said(epsilon: float, delta: float) -> float:
        asked.append((epsilon, delta))
        return factor * gaussian_sigma(epsilon, delta)

    monkeypatch.setattr(dp_accounting, "get_sigma_gaussian", said)
    for factor in (1 + 1e-7, 1 - 1e-7):
        first = certified_sigma(8.0 * factor, 1e-5)
        assert first == max(1.0, factor) * gaussian_sigma(8.0 * factor, 1e-5)
        assert certified_sigma(8.0 * factor, 1e-5) == first
    assert len(asked) == 2
    factor = 1.1
    with pytest.raises(RuntimeError, match="accountants disagree"):
        certified_sigma(7.0, 1e-5)
    with pytest.raises(RuntimeError, match="accountants disagree"):
        certified_sigma(7.0, 1e-5)  # from what is kept
    assert len(asked) == 3
