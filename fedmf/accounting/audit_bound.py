"""Lower confidence bounds on what a mechanism leaks, from the errors of a test, and from scored canaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.factorization import Factorization
from fedmf.participation import Participation

#: So many first rounds are tried at most.
_STARTS: Final = 16
#: Patterns that move C·G less than this share of the best one are left out.
_NEARLY: Final = 0.98
#: Alternating signs are taken where they move C·G by this share of the worst signs.
_WORTH: Final = 0.8


@dataclass(frozen=True, eq=False)
class SignedPattern:
    """Rounds of one canary.

    Attributes:
        rounds: 0-based, increasing.
        signs: of its update along its direction, 1.0 or −1.0 a round.
        shift: ‖C·s‖ with s the signs at these rounds, zero elsewhere.
    """

    rounds: tuple[int, ...]
    signs: NDArray[np.float64]
    shift: float


def worst_from(C: Factorization, participation: Participation, start: int) -> SignedPattern:
    """The k rounds b apart from one round on, with the signs that move C·G furthest.

    The signs are those of the leading eigenvector of the pattern's Gram matrix, all one if it is
    non-negative.
    """
    k, b = participation.max_participations, participation.min_separation
    rounds = tuple(range(start, start + (k - 1) * b + 1, b))
    columns = C.columns(np.array(rounds))
    _, vectors = np.linalg.eigh(columns.T @ columns)
    signs = np.where(vectors[:, -1] * np.sign(vectors[:, -1].sum() or 1.0) < 0, -1.0, 1.0)
    return SignedPattern(rounds, signs, float(np.linalg.norm(columns @ signs)))


def spread_patterns(C: Factorization, participation: Participation) -> tuple[SignedPattern, ...]:
    """Patterns that (k, b) allows, of different first rounds, that are the worst of these or nearly so.

    Alternating signs are taken unless they move C·G much less than the worst ones: what other users add along
    a direction changes slowly, and cancels.

    Any pattern gives a sound audit; one that is not the worst only makes it weaker.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    last = min(b, n - (k - 1) * b) - 1
    starts = np.unique(np.linspace(0, last, min(last + 1, _STARTS)).round().astype(int))
    found = [worst_from(C, participation, int(start)) for start in starts]
    alternating = [_alternating(C, pattern.rounds) for pattern in found]
    if _largest(alternating) >= _WORTH * _largest(found):
        found = alternating
    return tuple(pattern for pattern in found if pattern.shift >= _NEARLY * _largest(found))


def _alternating(C: Factorization, rounds: tuple[int, ...]) -> SignedPattern:
    signs = np.where(np.arange(len(rounds)) % 2, -1.0, 1.0)
    return SignedPattern(rounds, signs, float(np.linalg.norm(C.columns(np.array(rounds)) @ signs)))


def _largest(patterns: Sequence[SignedPattern]) -> float:
    return max(pattern.shift for pattern in patterns)


#: Columns of C at a time.
_BLOCK: Final = 512


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """A number for every canary that is larger with heads.

    Attributes:
        scores: shape (m,).
        shifts: by how much, in units of clip norms and clip norms of the unit direction, shape (m,); 0 for
            those whose first round is still to come.
    """

    scores: NDArray[np.float64]
    shifts: NDArray[np.float64]

    def guesses(self) -> NDArray[np.bool_]:
        """Whether each coin is guessed to be heads, from the scores alone.

        The threshold of canary i is c·shift_i with the c that fits all scores best, since coins are fair. It
        needs no knowledge of how long canaries' updates really were.
        """
        energy = float(self.shifts @ self.shifts)
        middle = float(self.shifts @ self.scores) / energy if energy > 0 else 0.0
        return self.scores > middle * self.shifts


def canary_scores(
    C: Factorization, patterns: Sequence[SignedPattern], rows: NDArray[np.float64]
) -> CanaryScores:
    """The likelihood-ratio statistic of each canary, other users' updates left aside.

    With s the signs of canary i at its rounds before T and Y_{:,i} the T released sums along its direction,

        score_i = (Cs)ᵀ(C·Y_{:,i})/‖Cs‖,        shift_i = ‖Cs‖,        of the leading T×T block of C.

    Args:
        C: of the run.
        patterns: canary i has pattern i mod their number.
        rows: released sums along the canaries' directions, in units of ζ, shape (T, m); NaN in rows of which
            nothing is known, which are left out.
    """
    known: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    released, m = rows.shape
    used = min(len(patterns), m)
    signals = np.zeros((C.rounds, used))
    for place, pattern in enumerate(patterns[:used]):
        signals[list(pattern.rounds), place] = pattern.signs
    moved = np.zeros((released, used))
    blocks = [np.arange(at, min(at + _BLOCK, released)) for at in range(0, released, _BLOCK)]
    for block in blocks:
        moved += C.columns(block)[:released] @ signals[block]
    norms = np.linalg.norm(moved, axis=0)
    weights = np.vstack([C.columns(block)[:released].T @ moved for block in blocks] or [moved])
    weights = np.divide(weights, norms, out=np.zeros_like(weights), where=norms > 0)
    weights[~known] = 0.0
    filled = np.where(known[:, None], rows, 0.0)
    scores = np.zeros(m)
    for place in range(used):
        scores[place::used] = weights[:, place] @ filled[:, place::used]
    # What is left of a canary's own signal where rows are missing.
    left = np.einsum("tp,tp->p", weights, signals[:released])
    return CanaryScores(scores, np.maximum(left, 0.0)[np.arange(m) % used] if m else np.zeros(0))


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
