"""Upper limits hold as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from fedmf.accounting.amplification.limits import mean_upper_limit


@pytest.mark.parametrize("kind", ["rarer", "rare", "uniform", "constant"])
def test_the_limit_covers(kind):
    """1000 experiments at β = 0.05; false alarm 1e-6 from the quantile of Bin(1000, 0.05).

    Of 360 draws none is 1 with probability 0.34 or 0.11 in the rare cases: nearest to Markov's inequality, so
    a limit that aims at β^0.3 = 0.41 or β^0.7 = 0.12 fails there.
    """
    rng, failures, experiments, size = np.random.default_rng(5), 0, 1000, 400
    draw = {
        "rarer": lambda: (rng.random(size) < 0.003).astype(float),
        "rare": lambda: (rng.random(size) < 0.006).astype(float),
        "uniform": lambda: rng.random(size),
        "constant": lambda: np.full(size, 0.25),
    }[kind]
    mean = {"rarer": 0.003, "rare": 0.006, "uniform": 0.5, "constant": 0.25}[kind]
    for _ in range(experiments):
        failures += mean_upper_limit(draw(), 1.0, 0.05) < mean
    assert failures <= binom.isf(1e-6, experiments, 0.05)


def test_a_sample_without_the_rare_value_says_little():
    limit = mean_upper_limit(np.zeros(1000), 1.0, 1e-6)
    assert 13.8 / 1000 < limit < 30 / 1000


def test_scaling():
    values = np.random.default_rng(1).random(500)
    assert mean_upper_limit(values * 1e-4, 1e-4, 1e-3) == pytest.approx(
        1e-4 * mean_upper_limit(values, 1.0, 1e-3), rel=1e-12
    )


@pytest.mark.parametrize(
    ("values", "failure"), [(np.ones(5), 0.1), (np.full(30, 2.0), 0.1), (np.full(30, 0.5), 0.0)]
)
def test_refusals(values, failure):
    with pytest.raises(ValueError, match="must"):
        mean_upper_limit(values, 1.0, failure)
