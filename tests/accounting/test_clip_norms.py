"""Adaptive clipping (docs/choosing.md): sensitivity, adaptive choices, what a moving norm costs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.mean_norms import MeanNorm
from support.oracles import patterns

from fedmf.accounting.gaussian import adjacency_factor, gaussian_delta
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import SIGNS
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import cgd, identity
from fedmf.participation import Adjacency, Participation
from fedmf.release.statistics import check_statistics, update_factor
from fedmf.runs.statistics import QuantileClipping

NORMS = (0.01, 0.3, 7.0)
#: What a user may send: nothing, vectors shorter and longer than any norm, not a number.
SENT = [
    [0.0, 0.0],
    [1e-3, 0.0],
    [0.0, -0.2],
    [0.299999, 0.0],
    [0.2, 0.2],
    [-5.0, 5.0],
    [9.0, 0.0],
    [-9.0, 0.0],
    [0.0, 1e30],
    [float("nan"), 1.0],
]


def entries(rule: QuantileClipping, price: float) -> np.ndarray:
    """(a·x/ζ, b·s) of one user, as the sums that runs use make it, for every norm and everything it
    may send.

    Args:
        rule: of the clip norm.
        price: 1 for a as the rule has it, 0 for a = 1.
    """
    a = 1 / update_factor([rule]) if price else 1.0
    b = 1 / rule.factor
    rows = []
    for zeta, sent in itertools.product(NORMS, SENT):
        total = ClippedSum(2, zeta, statistics=[SIGNS])
        total.add_updates(torch.tensor([sent], dtype=torch.float32))
        rows.append([*(a * total.fixed_point.double().numpy() * 2.0**-31), b * total.scalar(SIGNS)])
    return np.unique(np.array(rows), axis=0)


def worst(C: np.ndarray, k: int, b: int, rows: np.ndarray, adjacency: Adjacency) -> float:
    """The largest ‖C·D‖ per unit of the adjacency over patterns, norms of each round and a user's
    rows.
    """
    if adjacency == "replace-one":
        differences = (rows[:, None] - rows[None]).reshape(-1, 3)
        largest = np.linalg.norm(differences, axis=1)
        rows = np.unique(differences[largest > 0.9 * largest.max()].round(12), axis=0)
    found = 0.0
    for pattern in patterns(len(C), k, b):
        gram = C[:, pattern].T @ C[:, pattern]
        for chosen in itertools.product(range(len(rows)), repeat=len(pattern)):
            D = rows[list(chosen)]
            found = max(found, float(np.einsum("ij,id,jd->", gram, D, D)))
    return math.sqrt(found) / adjacency_factor(adjacency)


CASES: list[tuple[Factorization, Participation]] = [
    (Toeplitz([1.0, 0.6], 4), Participation(4, 2, 2)),
    (cgd(0.7, 4), Participation(4, 2, 1)),
    (identity(4), Participation(4, 2, 2)),
]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_no_choice_of_norms_and_updates_moves_the_release_by_more_than_the_sensitivity(
    adjacency: Adjacency, case: int, share: float
) -> None:
    factorization, contract = CASES[case]
    k = contract.max_participations
    b = contract.min_separation
    C = factorization.materialize()
    stated = sensitivity_of(factorization, contract)
    rule = QuantileClipping(budget_share=share)
    found = worst(C, k, b, entries(rule, price=1), adjacency)
    assert found <= stated.value * (1 + 1e-12)
    assert found >= stated.value * (1 - 1e-5)  # one that is as long as can be, told by its sign too
    unpriced = worst(C, k, b, entries(rule, price=0), adjacency)
    assert unpriced > stated.value * math.sqrt(1 + 0.9 * share)


@pytest.mark.parametrize("share", [1e-9, 0.3])
def test_the_prices_are_rounded_in_the_safe_direction(share: float) -> None:
    rule = QuantileClipping(budget_share=share)
    a = Fraction(update_factor([rule]))
    b = Fraction(rule.factor)
    assert 1 / a**2 + 1 / b**2 <= 1
    assert 1 / a**2 + 1 / b**2 >= 1 - Fraction(1, 10**12)


def losses(stale: bool) -> np.ndarray:
    """Privacy losses of a user who chooses its updates, under norms that follow what is released.

    The user sends vectors of norm 10 or nothing, so as to spread the loss; the norm moves by a
    factor of 3 after each round, by the sign of what was released. ``stale``: noise of round t has
    the scale ζ_{t−1}.
    """
    C = Toeplitz([1.0, 0.6], 6)
    contract = Participation(6, 3, 2)
    sensitivity = sensitivity_of(C, contract).value
    dense = C.materialize()
    rng = np.random.default_rng(5)
    draws = 200_000
    zeta = np.ones(draws)
    before = np.ones(draws)
    sent = np.zeros((draws, 6))
    loss = np.zeros(draws)
    for t in range(6):
        scale = before if stale else zeta
        if t % 2 == 0:
            # x_t/ζ_t in units of the noise; the user stops where it has lost much already
            sent[:, t] = np.where(loss < 1.5, np.minimum(10.0, zeta) / scale, 0.0)
        shift = sent @ dense[t] / sensitivity
        noise = rng.standard_normal(draws)
        loss += shift * noise + shift**2 / 2
        before = zeta
        zeta = zeta * np.where(shift + noise > 0, 3.0, 1 / 3.0)
    return loss


def test_norms_that_follow_releases_cost_no_more_than_the_gaussian_mechanism() -> None:
    """σ = 1: δ(ε) ≤ that of the Gaussian mechanism with μ = 1, for several ε, at false alarm
    1e-6.
    """
    right = losses(stale=False)
    stale = losses(stale=True)
    slack = math.sqrt(math.log(3e6) / (2 * len(right)))
    for epsilon in (0.25, 0.5, 1.0):
        allowed = gaussian_delta(1.0, epsilon)
        assert np.maximum(0.0, 1 - np.exp(epsilon - right)).mean() <= allowed + slack
        assert np.maximum(0.0, 1 - np.exp(epsilon - stale)).mean() > allowed + slack


def test_statistics_share_one_budget_and_none_goes_by_two_names() -> None:
    """a² + Σ b_i² ≤ 1; nothing left for updates, one name twice, and what no theorem covers are
    rejected.
    """
    for shares in [(0.02, 0.3), (1e-9, 1 - 1e-6), (0.5, 0.49)]:
        both = [QuantileClipping(budget_share=shares[0]), MeanNorm(budget_share=shares[1])]
        check_statistics(both, amplified=False, paired=False)
        factors = [update_factor(both), *(statistic.factor for statistic in both)]
        left = sum(1 / Fraction(factor) ** 2 for factor in factors)
        assert 1 - Fraction(1, 10**9) <= left <= 1

    own = MeanNorm(budget_share=0.3)
    for wrong in ([QuantileClipping(budget_share=0.5), MeanNorm(budget_share=0.5)], [own, own]):
        with pytest.raises(ValueError, match=r"must be below 1|must have different names"):
            check_statistics(wrong, amplified=False, paired=False)
    for amplified, paired in ((True, False), (False, True)):
        with pytest.raises(ValueError, match=r"statistic 'mean_norms' must be left out with"):
            check_statistics([own], amplified, paired)
