"""δ(ε) of releases by enumeration, against the Gaussian δ at μ = (s + W)/τ.

The rows are those of the package's rules, and W is what its plans use. Where a row, W or the noise
is wrong, the same comparison fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.enumeration import (
    EPSILONS,
    Integers,
    Start,
    Sums,
    Walk,
    Worlds,
    adaptive,
    deltas_of_laws,
    directed,
    enumerate_worlds,
    fixed,
    gaussian_deltas,
    greedy,
    ideal_mixture,
    mixture,
)

from fedmf.matrices.banded import Banded
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense, Factorization, normalized
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.noise.rows import RowRule, rule_of
from fedmf.noise.units import FINEST, Part, integer_noise

#: Sums of at most 10⁶ probabilities.
ROUNDING = 1e-11


class RuleWalk:
    """Rows of the package's rule: each entry of each outcome is a column."""

    def __init__(self, rule: RowRule[Any], outcomes: int, d: int) -> None:
        self._rule = rule
        self._shape = outcomes, d
        self._stored = np.zeros((rule.vectors, outcomes * d))
        self._k: list[Integers] = []

    def past(self) -> Integers:
        """The row of k_t = 0 is −R_t; what is stored stays."""
        return -self._row(np.zeros(self._shape, np.int64), self._stored.copy())

    def advance(self, k: Integers) -> Integers:
        x = self._row(k, self._stored)
        self._k.append(k)
        return x

    def _row(self, k: Integers, stored: np.ndarray) -> Integers:
        t = len(self._k)
        given = [*self._k, k]
        drawn = np.stack([given[s].reshape(-1) for s in self._rule.innovation_rounds(t, 1)])
        x = np.empty((1, drawn.shape[1]), np.int64)
        self._rule.rows(self._rule.tables(t, 1), drawn, stored, 0, x)
        return x.reshape(self._shape)


def package_rows(factorization: Factorization) -> Start:
    rule = rule_of(factorization.streaming_inverse())

    def start(outcomes: int, d: int) -> Walk:
        return RuleWalk(rule, outcomes, d)

    return start


def package_movement(factorization: Factorization, d: int, std: float) -> float:
    """W in units, by what a plan with noise τ states."""
    unit = 2.0**-FINEST
    noise = integer_noise(Part(factorization, d, users=1), std * unit, mu=1.0)
    assert noise.bits == FINEST
    return noise.movement / unit


def scales_of(factorization: Factorization, std: float) -> list[float]:
    return (std * factorization.streaming_inverse().diagonal()).tolist()


BAND = [[1.0, 0.5, -0.3], [0.8, 0.45, 0.0], [1.3, 0.0, 0.0]]
LOWER = [[1.0, 0.0, 0.0], [-0.3, 1.0, 0.0], [0.4, 0.36, 0.8]]
MATRICES: dict[str, Factorization] = {
    "feedback": Banded(BAND),
    "feedback of halves": Banded([[1.0, 0.5], [1.0, 0.5], [1.0, 0.0]]),
    "feedforward": Dense(LOWER),
    "lambda 0.9": InverseToeplitz([1.0, -0.9], 3),
    "decaying sums": BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 3),
    "decaying sums, normalized": normalized(BufferedToeplitz([0.7], [0.5], 3)),
    "block sums": tree(3),
    "sparse rows": kary_tree(3, 3),
}
FORMS = [*MATRICES]


def totals(seed: int, d: int) -> tuple[Integers, Integers]:
    """Two vectors a round; the first of the second world is not 0."""
    rng = np.random.default_rng(seed)
    first = rng.integers(-2, 3, (3, d))
    second = rng.integers(-2, 3, (3, d))
    second[0] = first[0] + 1
    return first, second


def adjacent(relation: str, seed: int, d: int) -> tuple[Integers, Integers]:
    first, second = totals(seed, d)
    return (np.zeros_like(first), second) if relation == "zero-out" else (first, second)


CHOICES: dict[str, Callable[[str, int, int], Sums]] = {
    "fixed": lambda relation, seed, d: fixed(*adjacent(relation, seed, d)),
    "adaptive": lambda relation, seed, d: adaptive(*adjacent(relation, seed, d), seed=seed),
    "greedy": lambda relation, seed, d: greedy(1),
}


def check_bound(worlds: Worlds, C: Factorization, std: float, movement: float) -> None:
    """δ(ε) ≤ Gaussian δ at (s + W)/τ, and ‖Dκ‖ ≤ s + W on every path."""
    matrix = C.materialize()
    s = worlds.sensitivity(matrix)
    assert worlds.movement(matrix) <= s + movement + ROUNDING
    bound = gaussian_deltas((s + movement) / std)
    assert (worlds.deltas() <= bound + worlds.lost + ROUNDING).all()


def enumerated(C: Factorization, std: float, d: int, sums: Sums) -> Worlds:
    return enumerate_worlds(package_rows(C), scales_of(C, std), d, sums)


CASES = [
    (relation, choice, seed)
    for relation in ("zero-out", "replace-one")
    for choice in ("fixed", "adaptive")
    for seed in (1, 2)
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("std", [1.0, 1.5])
def test_three_rounds_stay_below_the_bound(form: str, std: float) -> None:
    C = MATRICES[form]
    movement = package_movement(C, 1, std)
    for relation, choice, seed in (*CASES, ("zero-out", "greedy", 0)):
        worlds = enumerated(C, std, 1, CHOICES[choice](relation, seed, 1))
        assert worlds.lost < 1e-5
        check_bound(worlds, C, std, movement)


@pytest.mark.parametrize("form", ["feedback", "feedforward", "decaying sums", "block sums"])
def test_two_rounds_of_two_numbers_stay_below_the_bound(form: str) -> None:
    C = MATRICES[form].leading(2)
    movement = package_movement(C, 2, 1.0)
    for choice in ("fixed", "adaptive", "greedy"):
        worlds = enumerated(C, 1.0, 2, CHOICES[choice]("replace-one", 3, 2))
        check_bound(worlds, C, 1.0, movement)


@pytest.mark.parametrize("form", ["feedback", "lambda 0.9", "decaying sums"])
def test_more_noise_stays_below_the_bound(form: str) -> None:
    C = MATRICES[form].leading(2)
    movement = package_movement(C, 1, 3.0)
    for choice, relation in (
        ("fixed", "zero-out"),
        ("adaptive", "replace-one"),
        ("greedy", "zero-out"),
    ):
        check_bound(enumerated(C, 3.0, 1, CHOICES[choice](relation, 5, 1)), C, 3.0, movement)


# Plants: what the comparison must reject.


@pytest.mark.parametrize("form", ["feedback", "feedforward", "decaying sums", "block sums"])
def test_the_bound_without_what_rounding_costs_is_rejected(form: str) -> None:
    """W = 0."""
    C = MATRICES[form]
    broken = 0
    for choice in ("fixed", "greedy"):
        worlds = enumerated(C, 1.0, 1, CHOICES[choice]("zero-out", 1, 1))
        try:
            check_bound(worlds, C, 1.0, 0.0)
        except AssertionError:
            broken += 1
    assert broken > 0


LARGE = np.array([[45], [-20]])


@pytest.mark.parametrize(
    "form", ["feedback of halves", "lambda 0.9", "decaying sums", "block sums"]
)
def test_noise_of_nine_tenths_is_rejected(form: str) -> None:
    C = MATRICES[form].leading(2)
    std = 40.0
    movement = package_movement(C, 1, std)
    for factor, accepted in ((1.0, True), (0.9, False)):
        scales = scales_of(C, factor * std)
        worlds = enumerate_worlds(package_rows(C), scales, 1, fixed(np.zeros_like(LARGE), LARGE))
        if accepted:
            check_bound(worlds, C, std, movement)
        else:
            with pytest.raises(AssertionError):
                check_bound(worlds, C, std, movement)


def exceeds(
    release: Callable[[Integers, int], np.ndarray], C: Factorization, std: float, s: float
) -> bool:
    """Return True if a release, of any law, is above the bound of the theorem."""
    scales = scales_of(C, std)
    deltas = deltas_of_laws(release, scales, 1)
    lost = 4 * C.rounds * math.exp(-(8.5**2) / 2)
    bound = gaussian_deltas((s + package_movement(C, 1, std)) / std)
    return bool((deltas > bound + lost).any())


HALF = Banded([[1.0, 0.5], [1.0, 0.0]])
STEP = np.array([[0], [1]])
S_OF_STEP = 1.0


def of_rows(
    row: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[Integers, int], np.ndarray]:
    """Releases of two rounds by C = [[1, 0], [½, 1]]; the other world holds one unit more in the
    second.
    """

    def release(k: Integers, world: int) -> np.ndarray:
        x = k.astype(np.float64)
        x[:, 1] = row(k[:, 1].astype(np.float64), 0.5 * x[:, 0])
        return x + world * STEP

    return release


@pytest.mark.parametrize("std", [2.0, 4.0, 20.0])
def test_rounding_the_whole_form_is_rejected(std: float) -> None:
    """Ties go to even integers and merge two k into one X: the parity of G shows, with δ = 0.5 at
    any ε.
    """
    assert not exceeds(of_rows(lambda k, past: k - np.rint(past)), HALF, std, S_OF_STEP)
    whole = of_rows(lambda k, past: np.rint(k - past))
    assert exceeds(whole, HALF, std, S_OF_STEP)
    assert deltas_of_laws(whole, scales_of(HALF, std), 1)[-1] == pytest.approx(0.5, abs=1e-4)


def test_the_direct_law_of_the_right_rows_is_the_enumerated_one() -> None:
    right = deltas_of_laws(of_rows(lambda k, past: k - np.rint(past)), scales_of(HALF, 3.0), 1)
    worlds = enumerated(HALF, 3.0, 1, fixed(np.zeros_like(STEP), STEP))
    np.testing.assert_allclose(right, worlds.deltas(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("unit", [1.0, 2.0**-31])
def test_a_sum_added_as_floats_is_rejected(unit: float) -> None:
    """Sums that are not integers of the unit say which world it is in the last bits, whatever the
    noise.
    """
    one = Banded([[1.0]])
    values = (0.0, 0.7 * unit)

    def by_floats(k: Integers, world: int) -> np.ndarray:
        return values[world] + k * unit

    def by_integers(k: Integers, world: int) -> np.ndarray:
        return (int(values[world] / unit) + k) * unit

    assert exceeds(by_floats, one, 20.0, 0.7)
    assert deltas_of_laws(by_floats, [20.0], 1)[-1] == pytest.approx(1.0)
    assert not exceeds(by_integers, one, 20.0, 0.7)


def amplified_bounds(
    ideal: tuple[np.ndarray, np.ndarray], at: np.ndarray, epsilon: float, mu: float, either: bool
) -> tuple[float, float]:
    """Bounds on both directions of δ at ε from ideal ones at ε − ε₁, minimized over ε₁.

    Args:
        ideal: δ of the ideal process in both directions at ``at``.
        at: the ε at which they are known.
        epsilon: ε.
        mu: W/τ.
        either: whether each direction is a bound of the form e^{ε₁}δ + δ₁, which holds for one
            alone.
    """
    best = [math.inf, math.inf]
    for place, smaller in enumerate(at):
        more = epsilon - smaller
        if more <= 0:
            continue
        one = float(gaussian_deltas(mu, np.array([more]))[0])
        grown = math.exp(more) * ideal[1][place] + one
        shifted = ideal[0][place] + math.exp(smaller) * one
        best[0] = min(best[0], math.exp(more) * ideal[0][place] + one if either else shifted)
        best[1] = min(best[1], grown)
    return best[0], best[1]


MIXTURES: dict[str, tuple[Factorization, float, int]] = {
    "feedback": (Banded([[1.0, 0.45], [1.0, 0.0]]), 2.0, 1),
    "feedback, large": (Banded([[1.0, 0.45], [1.0, 0.0]]), 16.0, 16),
    "feedforward": (InverseToeplitz([1.0, -0.45], 2), 2.0, 1),
    "feedforward, large": (Dense([[1.0, 0.0], [0.5, 0.8]]), 12.0, 9),
    "decaying sums": (BufferedToeplitz([0.5], [0.45], 2), 2.0, 1),
    "block sums": (tree(2), 2.0, 1),
}


@pytest.mark.parametrize("case", MIXTURES)
def test_a_secret_round_stays_below_the_amplified_bound(case: str) -> None:
    """Against the world without the user; the ideal process is a mixture of Gaussians on a grid."""
    C, std, size = MIXTURES[case]
    laws = mixture(package_rows(C), scales_of(C, std), size)
    exact = directed(*laws)
    ideal = directed(*ideal_mixture(C.materialize(), std, size))
    lost = max(1 - laws[0].sum(), 1 - laws[1].sum(), 0.0)
    mu = package_movement(C, 1, std) / std
    above_ideal = False
    for place, epsilon in enumerate(EPSILONS):
        if epsilon == 0:
            continue
        bounds = amplified_bounds(ideal, EPSILONS, float(epsilon), mu, either=False)
        for direction in (0, 1):
            assert exact[direction][place] <= bounds[direction] + lost + 1e-6
            above_ideal |= exact[direction][place] > ideal[direction][place] + 1e-6
    assert above_ideal, "the ideal bound alone would do: nothing was tested"


def test_growing_delta_in_one_direction_only_is_no_bound() -> None:
    """Laws P, Q̃, Q of one bit: P and Q̃ are (ε, δ) apart, Q̃ and Q at most as N(0, 1) and N(μ, 1).

    e^{ε₁}·δ + δ₁ is exceeded by P over Q, δ + e^ε·δ₁ is not.
    """
    from scipy.stats import norm

    epsilon = 1.0
    delta = 1e-6
    mu = 1e-3
    more = 2.5 * mu
    one = float(gaussian_deltas(mu, np.array([more]))[0])
    q = norm.cdf(-more / mu - mu / 2)
    tilted = norm.cdf(norm.ppf(q) + mu)
    p = math.exp(epsilon) * tilted + delta
    for a, b in ((p, tilted), (tilted, p), (1 - p, 1 - tilted), (1 - tilted, 1 - p)):
        assert a <= math.exp(epsilon) * b + delta + 1e-15
    excess = p - math.exp(epsilon + more) * q
    assert excess > math.exp(more) * delta + one
    assert excess <= delta + math.exp(epsilon) * one + 1e-15
