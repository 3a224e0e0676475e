"""In which rounds canaries take part, and with which signs."""

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
