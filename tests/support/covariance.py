"""Whether noise has a covariance, decided with a stated rate of false alarms; imports no fedmf.

With W = C·Y/scale, Y the (n, d) noise, S = WWᵀ/d should be the identity: √d·S_ij is standard normal
off the diagonal and d·S_ii is chi-square with d degrees of freedom. All n(n+1)/2 entries are
compared, each at level FALSE_ALARM divided by their number.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6


def covariance_fits(noise: np.ndarray, strategy: np.ndarray, scale: float) -> bool:
    """Whether every entry of the whitened covariance is within its quantiles."""
    whitened = strategy @ noise / scale
    n, d = whitened.shape
    scatter = whitened @ whitened.T
    alpha = FALSE_ALARM / (n * (n + 1))  # two-sided
    squares = np.diag(scatter)
    cross = scatter[~np.eye(n, dtype=bool)]
    diagonal_fits = (stats.chi2.ppf(alpha, d) < squares) & (squares < stats.chi2.isf(alpha, d))
    return bool(diagonal_fits.all() and np.abs(cross).max() < math.sqrt(d) * stats.norm.isf(alpha))
