"""What guessing coins proves: every guesser of small mechanisms, by quadrature and by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from fedmf.accounting import SignedPattern, canary_scores, spread_patterns
from fedmf.factorization.matrices.closed_form import square_root
from fedmf.factorization.matrices.toeplitz import Toeplitz
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation
from fedmf.parts import canary_bound, canary_power

COINS = np.array(list(itertools.product((0, 1), repeat=2)))


def best_of_all_guessers(posteriors: NDArray[np.float64], least: int) -> NDArray[np.float64]:
    """max over guesses of P(at least so many of two coins are right | output), for rows of posteriors."""
    right = (COINS[:, None, :] == COINS[None, :, :]).sum(axis=2) >= least
    return (posteriors @ right).max(axis=1)


def by_quadrature(mu: float, cosine: float, least: int) -> float:
    """P(at least so many of two coins are right) of the best guesser, for directions at an angle."""
    x = np.linspace(-8, 8 + 2 * mu, 450)
    places = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    directions = mu * np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])
    joint = np.array([np.exp(-((places - s @ directions) ** 2).sum(axis=1) / 2) for s in COINS]).T
    return float(best_of_all_guessers(joint, least).sum() * (x[1] - x[0]) ** 2 / (2 * np.pi) / 4)


@pytest.mark.parametrize("mu", [0.5, 1.666, 3.0])
def test_no_guesser_of_two_orthogonal_canaries_beats_the_binomial_law(mu: float) -> None:
    for least in (1, 2):
        bound = stats.binom.sf(least - 1, 2, ndtr(mu / 2))
        assert by_quadrature(mu, 0.0, least) == pytest.approx(bound, abs=1e-4), "and Theorem 1 is tight"


def test_directions_that_are_not_orthogonal_break_it() -> None:
    """Why directions have disjoint supports: with a cosine the law is another one."""
    beaten = [
        by_quadrature(1.666, cosine, least) - stats.binom.sf(least - 1, 2, ndtr(1.666 / 2))
        for cosine in (-0.9, 0.9)
        for least in (1, 2)
    ]
    assert max(beaten) > 0.005


def enumerated(
    noise: dict[tuple[int, ...], float], drift: Callable[[int, int], int], least: int
) -> tuple[float, float]:
    """(best guesser's P, the bound) for two rounds and two canaries on axes, lower triangular C = [1 0; 2 1].

    Other users add drift(first output of both axes, R) to each axis in round 1, R a secret bit that the
    guesser knows; rows of noise are over (round, axis).
    """
    outputs: dict[tuple[int, ...], NDArray[np.float64]] = {}
    for secret, (at, coins), (z, chance) in itertools.product((0, 1), enumerate(COINS), noise.items()):
        # With X = C·Y: X_0 = s + z_0, X_1 = 2s + s + z_1 + drift, both canaries in both rounds.
        first = coins + np.array(z[:2])
        moved = drift(int(first @ (1, 3)), secret)
        second = 3 * coins + np.array(z[2:]) + moved
        key = (secret, *first.tolist(), *second.tolist())
        outputs.setdefault(key, np.zeros(4))[at] += chance / 8
    found = float(best_of_all_guessers(np.array(list(outputs.values())), least).sum())
    laws = [dict[tuple[int, int], float]() for _ in range(2)]
    for coin, (z, chance) in itertools.product((0, 1), noise.items()):
        key = coin + z[0], 3 * coin + z[2]
        laws[coin][key] = laws[coin].get(key, 0.0) + chance
    shared = sum(min(laws[0].get(key, 0.0), laws[1].get(key, 0.0)) for key in laws[0].keys() | laws[1].keys())
    return found, float(stats.binom.sf(least - 1, 2, 1 - shared / 2))


def noise_of(steps: dict[int, float], together: bool) -> dict[tuple[int, ...], float]:
    """Independent for every entry, or the same for both axes."""
    if together:
        return {(a, a, b, b): steps[a] * steps[b] for a in steps for b in steps}
    draws = itertools.product(steps, repeat=4)
    return {z: float(np.prod([steps[step] for step in z])) for z in draws}


STEPS = {-2: 0.1, -1: 0.2, 0: 0.4, 1: 0.2, 2: 0.1}
DRIFTS: list[Callable[[int, int], int]] = [
    lambda seen, secret: 0,
    lambda seen, secret: 7 * seen + secret,
    lambda seen, secret: (seen * seen) % 5 - 3 * secret,
]


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("least", [1, 2])
def test_every_guesser_of_a_discrete_mechanism(drift: Callable[[int, int], int], least: int) -> None:
    """The proof uses of the noise only that canaries' parts of it are independent, so steps can stand in."""
    found, bound = enumerated(noise_of(STEPS, together=False), drift, least)
    assert found <= bound * (1 + 1e-12)
    assert found == pytest.approx(bound, rel=1e-9), "who knows everything but the coins attains it"


def test_noise_that_two_canaries_share_is_caught() -> None:
    found = [enumerated(noise_of(STEPS, together=True), DRIFTS[0], least) for least in (1, 2)]
    assert any(best > 1.02 * bound for best, bound in found)


def test_the_law_of_right_guesses_with_users_who_follow_the_releases() -> None:
    """4000 draws, a tail of the law at false-alarm rate 1e-6; noise too small by a tenth is seen.

    The other users echo what was released, ten times as large as any canary, and the guesser knows them.
    """
    n, m, trials, rng = 8, 12, 4000, np.random.default_rng(0)
    C = square_root(n)
    dense, inverse = C.materialize(), np.linalg.inv(C.materialize())
    pattern = SignedPattern((0, 4), np.ones(2), float(np.linalg.norm(dense[:, [0, 4]].sum(axis=1))))
    signal = np.isin(np.arange(n), pattern.rounds).astype(float)
    for wrong, expected in ((1.0, True), (1.1, False)):
        tau = pattern.shift / 1.666 / wrong
        coins = rng.random(m * trials) < 0.5
        added = tau * inverse @ rng.standard_normal((n, m * trials))
        others, released = np.zeros((2, n, m * trials))
        for t in range(n):
            others[t] = 10 * np.sin(released[:t].sum(axis=0))
            released[t] = others[t] + coins * signal[t] + added[t]
        scores = canary_scores(C, [pattern], released - others)
        guesses = scores.scores > scores.shifts / 2
        right = (guesses == coins).reshape(trials, m).sum(axis=1)
        least = 10
        bound = stats.binom.sf(least - 1, m, ndtr(1.666 / 2))
        alarm = stats.binom.isf(1e-6, trials, bound)
        assert ((right >= least).sum() <= alarm) == expected


@pytest.mark.parametrize("judged", [1, 20, 150])
@pytest.mark.parametrize("mu", [0.0, 0.7, 1.666, 3.0])
def test_a_bound_is_above_the_truth_with_the_stated_chance_at_most(judged: int, mu: float) -> None:
    law = stats.binom.pmf(np.arange(judged + 1), judged, ndtr(mu / 2))
    wrong = sum(p for N, p in enumerate(law) if canary_bound(N, judged, 1e-5).mu > mu)
    assert wrong <= 0.05
    if judged == 150 and mu in (0.7, 1.666):
        assert wrong > 0.02, "the bound is not needlessly weak"


def test_power_is_what_the_bound_does() -> None:
    claimed, true, m = 1.666, 2.5, 60
    law = stats.binom.pmf(np.arange(m + 1), m, ndtr(true / 2))
    refuted = sum(p for N, p in enumerate(law) if canary_bound(N, m, 1e-5).mu > claimed)
    assert canary_power(m, claimed, true) == pytest.approx(refuted, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((5, 4), r"N \(coins guessed rightly\) must"), ((1, 4, 1e-5, 1.0), r"confidence .* must lie")],
)
def test_numbers_out_of_range_are_refused(arguments: tuple[float, ...], message: str) -> None:
    judged = (*arguments, 1e-5) if len(arguments) == 2 else arguments
    with pytest.raises(ValueError, match=message):
        canary_bound(*judged)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decay", "bands", "signs", "share"),
    [(0.6, 3, [1, -1, 1, -1], 1.0), (0.6, 9, [1, -1, 1, -1], 0.8), (0.95, 20, [1, 1, 1, 1], 1.0)],
)
def test_patterns_are_allowed_and_nearly_the_worst(
    decay: float, bands: int, signs: list[int], share: float
) -> None:
    """Signs alternate where it is free or cheap; else they are those that reach the sensitivity."""
    contract = Participation(20, 4, 4)
    C = Toeplitz(np.array([decay**lag for lag in range(bands)]), 20)
    worst = stated_sensitivity(C, contract).value
    found = spread_patterns(C, contract)
    for pattern in found:
        assert (np.diff(pattern.rounds) >= 4).all()
        assert len(pattern.rounds) == 4
        assert 0 <= pattern.rounds[0] <= pattern.rounds[-1] < 20
        moved = C.columns(np.array(pattern.rounds)) @ pattern.signs
        assert pattern.shift == pytest.approx(np.linalg.norm(moved))
        assert 0.98 * share * worst <= pattern.shift <= worst * (1 + 1e-12)
        assert pattern.signs.tolist() == signs


def test_rows_that_are_missing_leave_the_rest() -> None:
    C = Toeplitz(np.array([1.0, 0.5, 0.25]), 6)
    pattern = SignedPattern((1, 4), np.ones(2), 1.0)
    rows = np.zeros((6, 3))
    rows[[1, 4], 0] = 1.0  # canary 0 alone, without noise
    whole = canary_scores(C, [pattern], rows)
    assert whole.scores == pytest.approx([whole.shifts[0], 0, 0])
    rows[4] = np.nan
    part = canary_scores(C, [pattern], rows)
    assert part.scores == pytest.approx([part.shifts[0], 0, 0])
    assert 0 < part.shifts[0] < whole.shifts[0]
    assert part.guesses().tolist() == [True, False, False]
    assert canary_scores(C, [pattern], rows[:1]).shifts.tolist() == [0, 0, 0]
