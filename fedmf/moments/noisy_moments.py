"""A private mean and covariance with the known variances of their noise, and their intervals.

Everything here is post-processing of released numbers, with constants of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmf.matrices.arrays import Array

#: Lower and upper ends.
Interval = tuple[Array, Array]
#: Of the chance 1 − level that an interval misses, the part that bounds the true mean from above.
_MEAN_SHARE = 0.04


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """The private mean and covariance of one step, or of many along leading axes "…".

    With m̂ = m + e, e ~ N(0, v·I), and Ŝ = S + E, E symmetric with variance v₂ on and v₂/2 off the
    diagonal, the unbiased Σ̂ = Ŝ − m̂m̂ᵀ + v·I misses Σ = S − mmᵀ by E − meᵀ − emᵀ − (eeᵀ −
    v·I). So

        Var Σ̂_ab = v₂/2 + v(m_a² + m_b²) + v²   (a ≠ b),      Var Σ̂_aa = v₂ + 4v·m_a² + 2v².

    Args:
        mean: m̂, shape (…, d).
        covariance: Σ̂ before anything is done to it, shape (…, d, d), or its diagonal, shape (…,
            d).
        mean_variance: v, of the noise of each coordinate of m̂, shape (…).
        second_variance: v₂, of the noise of each diagonal entry of Ŝ (half of it elsewhere), shape
            (…).
        norm_bound: ζ: no row is longer, so ‖m‖ ≤ ζ and tr Σ ≤ ζ².
    """

    mean: Array
    covariance: Array
    mean_variance: Array
    second_variance: Array
    norm_bound: float

    @property
    def full(self) -> bool:
        """Whether the covariance is a matrix and not its diagonal."""
        return self.covariance.ndim > self.mean.ndim

    def covariance_errors(self) -> Array:
        """√Var of each entry of Σ̂, where m_a² is put at max(m̂_a² − v, 0); in the shape of Σ̂."""
        v = np.asarray(self.mean_variance)[..., None]
        return np.sqrt(self._variances(np.maximum(self.mean**2 - v, 0.0)))

    def mean_interval(self, level: float = 0.95) -> Interval:
        """Exact interval of each m_a: m̂_a ± z√v, within ±ζ.

        Args:
            level: chance that the interval of an entry holds its true value, each by itself.
        """
        z = _normal_quantile(1 - (1 - _checked(level)) / 2)
        half = z * np.sqrt(self.mean_variance)[..., None]
        return self._within(self.mean, half, -self.norm_bound, self.norm_bound)

    def covariance_interval(self, level: float = 0.95) -> Interval:
        """Interval of each Σ_ab around the unbiased Σ̂_ab, within what rows of norm ≤ ζ allow.

        Var Σ̂_ab grows with |m_a| and |m_b|, which are only known with noise. With a part β of 1 −
        level the interval takes √(m_a² + m_b²) at its upper limit √(m̂_a² + m̂_b²) + z_β√v (Berger
        and Boos 1994), and 1 − level − β is left to the two ends. The part of the error that is not
        Gaussian, e_a·e_b, then has a small share of that variance.

        Args:
            level: chance that the interval of an entry holds its true value, each by itself.

        Guarantees:
            At least `level`, whatever the data; tests/moments/test_density.py measures it.
        """
        missed = 1 - _checked(level)
        z = _normal_quantile(1 - (1 - _MEAN_SHARE) * missed / 2)
        half = z * np.sqrt(self._largest_variances(missed))
        least, largest = self._within(self.covariance, half, 0.0, self.norm_bound**2)
        if not self.full:
            return least, largest
        # Entries off the diagonal may be negative, and reach half as far.
        reach = self.norm_bound**2 / 2
        below, above = self._within(self.covariance, half, -reach, reach)
        index = np.arange(self.mean.shape[-1])
        below[..., index, index] = least[..., index, index]
        above[..., index, index] = largest[..., index, index]
        return below, above

    def correlation_interval(self, level: float = 0.95) -> Interval:
        """Conservative interval of each Σ_ab/√(Σ_aa Σ_bb), within ±1, shape (…, d, d).

        It follows from the intervals of the covariance (three fifths of 1 − level) and of both
        variances (a fifth each).

        Raises:
            ValueError: only the diagonal of the covariance was released.
        """
        if not self.full:
            raise ValueError(
                "Sigma (covariance) must be a matrix for correlations; got its diagonal. "
                "Release the full second moment."
            )
        missed = 1 - _checked(level)
        below, above = self.covariance_interval(1 - 0.6 * missed)
        covariances_below, covariances_above = self.covariance_interval(1 - 0.2 * missed)
        least = _deviation_products(covariances_below)
        largest = _deviation_products(covariances_above)
        with np.errstate(divide="ignore", invalid="ignore"):
            low = np.where(below < 0, below / least, below / largest)
            high = np.where(above > 0, above / least, above / largest)
        low = np.clip(np.nan_to_num(low), -1.0, 1.0)
        high = np.clip(np.nan_to_num(high), -1.0, 1.0)
        index = np.arange(low.shape[-1])
        low[..., index, index] = high[..., index, index] = 1.0
        return low, high

    def mean_square(self) -> Array:
        """‖m‖², unbiased but not below zero, shape (…)."""
        d = self.mean.shape[-1]
        return np.maximum(np.sum(self.mean**2, axis=-1) - d * self.mean_variance, 0.0)

    def trace_variance(self) -> Array:
        """Var tr Σ̂, shape (…)."""
        d = self.mean.shape[-1]
        v = self.mean_variance
        return d * self.second_variance + 4 * v * self.mean_square() + 2 * d * v**2

    def error_square(self) -> Array:
        """E‖Σ̂ − Σ‖_F² over the noise of this release, shape (…)."""
        d = self.mean.shape[-1]
        v = self.mean_variance
        if not self.full:
            return self.trace_variance()
        linear = 2 * (d + 1) * v * self.mean_square()
        return d * (d + 1) * (self.second_variance / 2 + v**2) + linear

    def trace_interval(self, level: float = 0.95) -> Interval:
        """Interval of tr Σ, the sum of the variances, within [0, ζ²]."""
        missed = 1 - _checked(level)
        v = self.mean_variance
        d = self.mean.shape[-1]
        room = _normal_quantile(1 - _MEAN_SHARE * missed) * np.sqrt(v)
        norm = np.linalg.norm(self.mean, axis=-1) + room
        spread = np.sqrt(d * self.second_variance + 4 * v * norm**2 + 2 * d * v**2)
        half = _normal_quantile(1 - (1 - _MEAN_SHARE) * missed / 2) * spread
        variances = self.covariance
        if self.full:
            variances = _diagonal(self.covariance)
        trace = np.sum(variances, axis=-1)
        return self._within(trace, half, 0.0, self.norm_bound**2)

    def _largest_variances(self, missed: float) -> Array:
        """Var of each entry of Σ̂ at the upper limit of the mean, exceeded with chance β."""
        v = np.asarray(self.mean_variance)[..., None]
        room = _normal_quantile(1 - _MEAN_SHARE * missed) * np.sqrt(v)
        alone = (np.abs(self.mean) + room) ** 2
        if not self.full:
            return self._variances(alone)
        together = np.hypot(self.mean[..., :, None], self.mean[..., None, :]) + room[..., None]
        return self._variances(alone, together**2)

    def _variances(self, squares: Array, sums: Array | None = None) -> Array:
        """Var of each entry for given m_a² and m_a² + m_b²."""
        v = np.asarray(self.mean_variance)[..., None]
        v_2 = np.asarray(self.second_variance)[..., None]
        on_diagonal = v_2 + 4 * v * squares + 2 * v**2
        if not self.full:
            return on_diagonal
        if sums is None:
            sums = squares[..., :, None] + squares[..., None, :]
        v = v[..., None]
        v_2 = v_2[..., None]
        variances = v_2 / 2 + v * sums + v**2
        index = np.arange(squares.shape[-1])
        variances[..., index, index] = on_diagonal
        return variances

    def _within(self, center: Array, half: Array, least: float, most: float) -> Interval:
        return np.clip(center - half, least, most), np.clip(center + half, least, most)


def _diagonal(matrices: Array) -> Array:
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def _deviation_products(covariances: Array) -> Array:
    """√(Σ_aa Σ_bb), shape (…, d, d)."""
    variances = _diagonal(covariances)
    return np.sqrt(variances[..., :, None] * variances[..., None, :])


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level (of an interval) must lie between 0 and 1; got {level}.")
    return level


def _normal_quantile(share: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(share))
