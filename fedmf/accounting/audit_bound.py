"""Lower confidence bounds on what a mechanism leaks, from the errors of a test that tries to find out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from fedmf.accounting.gaussian import gaussian_epsilon


@dataclass(frozen=True)
class LeakageBound:
    """A lower bound on the leakage of a mechanism that holds with the stated confidence.

    Attributes:
        mu: the mechanism is not μ'-GDP for any μ' below this. It says nothing if 0.
        epsilon_gdp: ε(δ) of a Gaussian mechanism of that μ: what a claim of (ε, δ) that stems from μ-GDP is
            to be compared with.
        epsilon: the mechanism is not (ε', δ)-DP for any ε' below this, whatever its form; much weaker.
        threshold: where the test decides "took part".
        false_positives: of ``absent`` held-out statistics without the user.
        false_negatives: of ``present`` held-out statistics with the user.
    """

    mu: float
    epsilon_gdp: float
    epsilon: float
    threshold: float
    false_positives: int
    absent: int
    false_negatives: int
    present: int


def binomial_upper(successes: int, trials: int, failure: float) -> float:
    """The Clopper–Pearson upper confidence limit of a probability: it is below the truth with chance ≤
    failure.

    >>> round(binomial_upper(0, 100, 0.05), 5)   # 1 − 0.05^(1/100)
    0.02951
    """
    return 1.0 if successes >= trials else float(betaincinv(successes + 1, trials - successes, 1 - failure))


def leakage_bound(
    with_user: NDArray[np.float64], without_user: NDArray[np.float64], delta: float, confidence: float
) -> LeakageBound:
    """How much the statistics with a user and those without one differ, at least.

    The first half of each sample chooses a threshold. On the second half the test "statistic ≥ threshold"
    has some errors; α and β are Clopper–Pearson upper limits of the two error probabilities, each failing
    with chance at most (1 − confidence)/2. A μ-GDP mechanism obeys Φ⁻¹(1 − α) − Φ⁻¹(β) ≤ μ, an (ε, δ)-DP one
    max((1 − δ − β)/α, (1 − δ − α)/β) ≤ e^ε.

    Args:
        with_user: independent values of a statistic that is larger when the user takes part.
        without_user: the same without the user.
        delta: δ at which ε is stated.
        confidence: in (0, 1).

    Raises:
        ValueError: fewer than 4 values of a kind, or a confidence outside (0, 1).

    Guarantees:
        If the values are independent and of one law each, the bounds on μ and on ε hold with the stated
        confidence.

    References:
        Nasr et al. (2023), "Tight Auditing of Differentially Private Machine Learning"; Dong, Roth, Su
        (2022).

    >>> bound = leakage_bound(np.full(40, 9.0), np.zeros(40), 1e-5, 0.95)
    >>> bound.false_positives, bound.false_negatives, round(bound.mu, 3)
    (0, 0, 1.921)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence (of the bound) must lie strictly between 0 and 1; got {confidence!r}.")
    if min(with_user.size, without_user.size) < 4:
        raise ValueError(
            f"statistics (with and without the user) must be at least 4 each; got {with_user.size} and "
            f"{without_user.size}. Use more canaries or runs."
        )
    (choose_in, judge_in), (choose_out, judge_out) = (
        (values[: values.size // 2], values[values.size // 2 :]) for values in (with_user, without_user)
    )
    failure = (1 - confidence) / 2
    threshold = _best_threshold(choose_in, choose_out, failure)
    false_negatives, false_positives = int((judge_in < threshold).sum()), int((judge_out >= threshold).sum())
    alpha = binomial_upper(false_positives, judge_out.size, failure)
    beta = binomial_upper(false_negatives, judge_in.size, failure)
    mu = _mu(alpha, beta)
    ratio = max((1 - delta - beta) / alpha, (1 - delta - alpha) / beta)
    return LeakageBound(
        mu=mu,
        epsilon_gdp=gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0,
        epsilon=max(0.0, math.log(ratio)) if ratio > 0 else 0.0,
        threshold=threshold,
        false_positives=false_positives,
        absent=judge_out.size,
        false_negatives=false_negatives,
        present=judge_in.size,
    )


def _mu(alpha: float, beta: float) -> float:
    return max(0.0, float(ndtri(1 - alpha) - ndtri(beta))) if max(alpha, beta) < 1 else 0.0


def _best_threshold(inside: NDArray[np.float64], outside: NDArray[np.float64], failure: float) -> float:
    """Of a hundred quantiles of the pooled values the one with the best bound on this half."""
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, 101))
    inside, outside = np.sort(inside), np.sort(outside)
    mu_bounds = []
    for threshold in candidates:
        negatives = int(np.searchsorted(inside, threshold))
        positives = outside.size - int(np.searchsorted(outside, threshold))
        mu_bounds.append(
            _mu(
                binomial_upper(positives, outside.size, failure),
                binomial_upper(negatives, inside.size, failure),
            )
        )
    return float(candidates[int(np.argmax(mu_bounds))])
