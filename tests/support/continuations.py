"""The joint release of several continuations of a run, by definition: covariances, nothing of
fedmf.

A continuation is a sequence of letters, one a round; two share the rounds up to which their letters
agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = tuple[str, int]


def released_rows(paths: Sequence[str]) -> list[Row]:
    """Every distinct (history up to and with a round, round): one row of noise that was
    released.
    """
    return list(dict.fromkeys((path[: t + 1], t) for path in paths for t in range(len(path))))


def covariance(C: Array, paths: Sequence[str]) -> Array:
    """Of the noise in all released sums: row (history, t) has Σ_s [C⁻¹]_ts z(history, s), and the z
    of two rows are the same exactly where their histories up to round s are.
    """
    inverse = np.linalg.inv(C)
    rows = released_rows(paths)
    cov = np.zeros((len(rows), len(rows)))
    for (i, (one, t)), (j, (other, u)) in itertools.product(enumerate(rows), repeat=2):
        same = [s for s in range(min(t, u) + 1) if one[: s + 1] == other[: s + 1]]
        cov[i, j] = inverse[t, same] @ inverse[u, same]
    return cov


def furthest(cov: Array, pattern: Sequence[int], directions: Array | None = None) -> float:
    """The largest Mahalanobis distance between the release and the one without a user who took part
    in these rows, over contributions ±1, and of the given unit vectors of contributions.
    """
    precision = np.linalg.inv(cov)[np.ix_(pattern, pattern)]
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(pattern))))
    best = float(np.einsum("si,ij,sj->s", signs, precision, signs).max(initial=0.0))
    if directions is not None:
        best = max(best, float(np.sum(precision * (directions @ directions.T))))
    return best**0.5
