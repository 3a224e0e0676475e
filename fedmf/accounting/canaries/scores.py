"""What released sums say of every canary's coin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.canaries.patterns import SignedPattern
from fedmf.factorization import Factorization

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
