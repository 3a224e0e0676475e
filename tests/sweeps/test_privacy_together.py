"""What all runs of a sweep cost together, beside the law of one Gaussian."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm
from support.sweeps import small_sweep

from fedmf.accounting import gaussian_sigma
from fedmf.sweeps import privacy_together


def test_tuning_runs_count() -> None:
    """Two tuning and three reported runs of one cell cost √5 times the μ of one."""
    sweep = small_sweep(
        variants={"identity": {"mechanism.kind": "identity"}}, grid={}, tuning_seeds=(100,), base={}
    )
    said = privacy_together(sweep)
    epsilon, mu = float(said[1:].split(",")[0]), math.sqrt(5) / gaussian_sigma(8.0, 1e-5)
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert exact == pytest.approx(1e-5, rel=1e-3)
    assert exact <= 1e-5
    assert "for all 5 runs" in said


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({"privacy.kind": "none"}, "none: 5 of 5 runs add no noise"),
        ({"privacy.amplified": True, "cohorts.kind": "balls-in-bins"}, "add up, as some are amplified"),
    ],
)
def test_what_does_not_compose_so_is_said(base: dict[str, object], said: str) -> None:
    variants = {"identity": {"mechanism.kind": "identity"}}
    sweep = small_sweep(variants=variants, grid={}, tuning_seeds=(100,), base=base)
    assert said in privacy_together(sweep)
