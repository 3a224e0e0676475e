"""The best of randomly many trials: bounds against exact laws of what is released, and another library."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtr

from fedmf.accounting import (
    NegativeBinomialTrials,
    PoissonTrials,
    Trials,
    gaussian_epsilon,
    gaussian_sigma,
    selection_epsilon,
)
from fedmf.accounting.composition import selection

DELTA = 1e-5
LAWS = {
    "geometric": NegativeBinomialTrials(mean=8.0, shape=1.0),
    "logarithmic": NegativeBinomialTrials(mean=8.0, shape=0.0),
    "between": NegativeBinomialTrials(mean=20.0, shape=0.5),
    "narrow": NegativeBinomialTrials(mean=5.0, shape=4.0),
    "poisson": PoissonTrials(mean=8.0),
}
GRID = np.linspace(-10.0, 14.0, 48_001)
STEP = GRID[1] - GRID[0]


def weights_of(law: Trials) -> np.ndarray:
    """P[K = k] by summing the law itself."""
    return np.array([float(p) for p in itertools.islice(law.probabilities(), 1500)])


def generated(law: Trials, x: np.ndarray) -> np.ndarray:
    """E[x^K] by Horner's rule."""
    total = np.zeros_like(x)
    for p in weights_of(law)[::-1]:
        total = total * x + p
    return total


def released(law: Trials, mean: float) -> np.ndarray:
    """Probabilities of cells of the released value: the largest of K draws of N(mean, 1), or nothing."""
    edges = generated(law, ndtr(np.append(GRID - STEP / 2, GRID[-1] + STEP / 2) - mean))
    return np.append(np.diff(edges), generated(law, np.zeros(1)))


def released_coarsely(law: Trials, mean: float) -> np.ndarray:
    """The same where scores are −1, 0 and 1 and one of the best is drawn at random."""
    cells = ndtr(GRID + STEP / 2 - mean) - ndtr(GRID - STEP / 2 - mean)
    score = np.digitize(GRID, [-0.5, 1.0])
    mass = np.array([cells[score == s].sum() for s in range(3)])
    upper = generated(law, np.cumsum(mass))
    best = np.diff(upper, prepend=generated(law, np.zeros(1)))
    return np.append(cells * (best / mass)[score], generated(law, np.zeros(1)))


def delta_of(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(
        float(np.maximum(0.0, one - math.exp(epsilon) * other).sum()) for one, other in ((p, q), (q, p))
    )


@pytest.mark.parametrize("mu", [0.3, 1.0])
@pytest.mark.parametrize("release", [released, released_coarsely])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_exact_release_keeps_the_bound_and_costs_more_than_one_trial(
    law: Trials, release: object, mu: float
) -> None:
    """Draws below 1e-12 of the mass are left out of the cells; δ = 1e-5 is far above that."""
    assert callable(release)
    p, q = release(law, 0.0), release(law, mu)
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    bound = selection_epsilon(law, mu, DELTA)
    assert delta_of(p, q, bound.epsilon) <= DELTA
    alone = gaussian_epsilon(1 / mu, DELTA)
    assert bound.epsilon < 4 * alone + 0.5
    if release is released:
        # Whoever states the ε of one trial for the best of many is wrong by far.
        assert delta_of(p, q, alone) > 1.5 * DELTA


def three_groups(law: Trials, mean: float, best: np.ndarray, next_best: np.ndarray) -> np.ndarray:
    """Probabilities that the release is above one threshold, below another, neither, or nothing."""
    top, low = ndtr(mean - best), ndtr(next_best - mean)
    first, second = generated(law, 1 - top), generated(law, 1 - top - low)
    none = np.full(best.size, generated(law, np.zeros(1))[0])
    return np.stack([1 - first, first - second, second - none, none])


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 1e-2), (2.0, 1e-2), (2.0, 1e-5)])
@pytest.mark.parametrize("law", [*LAWS.values(), NegativeBinomialTrials(mean=100.0, shape=0.0)])
def test_a_score_made_against_the_users_keeps_the_bound_and_comes_near(
    law: Trials, mu: float, delta: float
) -> None:
    """Values above a threshold are best, which the shift makes likelier, and far below are next, which it
    makes rarer: the worst score found for this mechanism, over a grid of thresholds."""
    grid = np.meshgrid(np.linspace(0.5, 3.5, 13), np.linspace(-5.0, -1.5, 29), indexing="ij")
    thresholds = [part.ravel() for part in grid]
    p, q = (three_groups(law, mean, *thresholds) for mean in (0.0, mu))

    def worst(epsilon: float) -> float:
        return max(
            np.maximum(0.0, one - math.exp(epsilon) * other).sum(axis=0).max()
            for one, other in ((p, q), (q, p))
        )

    bound = selection_epsilon(law, mu, delta).epsilon
    assert worst(bound) <= delta
    assert worst(0.78 * bound) > delta


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_law_sums_to_one_and_has_its_mean(law: Trials) -> None:
    weights = weights_of(law)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights @ np.arange(weights.size) == pytest.approx(law.mean, rel=1e-9)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_numbers_of_trials_follow_the_law(law: Trials) -> None:
    """At 2000 equally spaced places each count has the share of its probability, to one place at each end."""
    counts = Counter(law.number((2 * i + 1) * 2**256 // 4000) for i in range(2000))
    for k, p in enumerate(weights_of(law)[:30].tolist()):
        assert abs(counts[k] - 2000 * p) <= 1.001
    assert law.number(0) == (0 if law.kind == "poisson" else 1)
    assert law.number(2**256 - 1) > 5 * law.mean


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (10.0, 0.0), (100.0, 0.0), (5.0, 3.0)])
def test_renyi_divergences_agree_with_the_other_library(epsilon: float, mean: float, shape: float) -> None:
    sigma = gaussian_sigma(epsilon, DELTA)
    other = RdpAccountant(orders=[*(1 + np.geomspace(1e-2, 1e3, 300))])
    other.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(sigma), mean, shape))
    law = NegativeBinomialTrials(mean=mean, shape=shape)
    found, _ = selection._renyi(law, 1 / sigma, DELTA)
    assert found == pytest.approx(other.get_epsilon(DELTA), rel=2e-3)
    assert found <= other.get_epsilon(DELTA) * (1 + 1e-9)
    assert selection_epsilon(law, 1 / sigma, DELTA).epsilon <= found * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_poisson_number_of_trials_costs_no_more_than_in_the_other_library(epsilon: float) -> None:
    """There δ of a trial comes from Rényi divergences, here it is exact."""
    sigma = gaussian_sigma(epsilon, DELTA)
    other = RdpAccountant(orders=[*(1 + np.geomspace(1e-2, 1e3, 300))])
    other.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(sigma), 10.0, math.inf))
    found = selection_epsilon(PoissonTrials(mean=10.0), 1 / sigma, DELTA).epsilon
    assert epsilon < found <= other.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NegativeBinomialTrials(mean=1.0), r"E\[K\] .mean number of trials. must be above 1"),
        (lambda: NegativeBinomialTrials(shape=-0.5), r"η .shape of the number of trials. must lie in 0"),
        (lambda: PoissonTrials(mean=0.0), r"E\[K\] .mean number of trials. must lie in"),
        (lambda: selection_epsilon(PoissonTrials(), 0.0, DELTA), "μ .of one trial. must be positive"),
        (lambda: selection_epsilon(PoissonTrials(), 1.0, 1.0), "δ .failure probability. must lie strictly"),
    ],
)
def test_what_is_out_of_range_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
