"""What released sums say of every canary's coin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
