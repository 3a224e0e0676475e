"""A private mean and covariance with the known variances of their noise, and their intervals.

Everything here is post-processing of released numbers, with constants of the plan.
"""

from __future__ import annotations

import math
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

    With Y = N·m + e, e ~ N(0, N²v·I), and S₂ = N·S + N·E, E symmetric with variance v₂ on and v₂/2
    off the diagonal, m̂ = Y/N and Ŝ = S₂/N. Where rows are counted, N is released as N(1 + κf) with
    f ~ N(0, v) and κ = 1/c, which takes the place of N. To second order m̂ misses m by δ = e − κf·m,
    and the unbiased Σ̂ = Ŝ − m̂m̂ᵀ + v(I + κ²mmᵀ) misses Σ = S − mmᵀ by

        E − meᵀ − emᵀ − κf(Σ − mmᵀ) − (δδᵀ − v(I + κ²mmᵀ)).

    So, with W = I + κ²mmᵀ,

        Var Σ̂_ab = v₂/2 + v(m_a² + m_b²) + vκ²(Σ_ab − m_a·m_b)² + v²(W_aa·W_bb + W_ab²)   (a ≠ b),
        Var Σ̂_aa = v₂   + 4v·m_a²        + vκ²(Σ_aa − m_a²)²     + 2v²·W_aa².

    Args:
        mean: m̂, shape (…, d).
        covariance: Σ̂ before anything is done to it, shape (…, d, d), or its diagonal, shape (…,
            d).
        mean_variance: v, of the noise of each coordinate of m̂, shape (…).
        second_variance: v₂, of the noise of each diagonal entry of Ŝ (half of it elsewhere), shape
            (…).
        norm_bound: ζ: no row is longer, so ‖m‖ ≤ ζ and tr Σ ≤ ζ².
        count_weight: c, with which rows are counted; infinite where their number is public.
    """

    mean: Array
    covariance: Array
    mean_variance: Array
    second_variance: Array
    norm_bound: float
    count_weight: float = math.inf

    @property
    def full(self) -> bool:
        """Whether the covariance is a matrix and not its diagonal."""
        return self.covariance.ndim > self.mean.ndim

    def covariance_errors(self) -> Array:
        """√Var of each entry of Σ̂ at the released moments, in the shape of Σ̂.

        There m_a² is put at max(m̂_a² − v, 0).
        """
        v = np.asarray(self.mean_variance)[..., None]
        variances = self._variances(self._pair_sums(np.maximum(self.mean**2 - v, 0.0)))
        return np.sqrt(
            variances + self._per_entry(self._count_variance) * self._count_slopes() ** 2
        )

    def mean_interval(self, level: float = 0.95) -> Interval:
        """Exact interval of each m_a: m̂_a ± z√v, within ±ζ; `fieller` where rows are counted.

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
        Gaussian, e_a·e_b, then has a small share of that variance. Where rows are counted, the
        variance also grows with |Σ_ab − m_a·m_b|, which is taken at the largest value that is
        compatible with the interval, as in Fieller's.

        Args:
            level: chance that the interval of an entry holds its true value, each by itself.

        Guarantees:
            At least `level`, whatever the data; tests/moments/test_density.py measures it.
        """
        missed = 1 - _checked(level)
        z = _normal_quantile(1 - (1 - _MEAN_SHARE) * missed / 2)
        # Entries off the diagonal may be negative, and reach half as far.
        reach = self.norm_bound**2 / 2
        sums = self._largest_pair_sums(missed)
        variances = self._variances(sums)
        count_variance = self._per_entry(self._count_variance)
        doubt = (sums - self._pair_sums(self.mean**2)) / 2  # of m_a·m_b
        slopes = _largest(np.abs(self._count_slopes()) + doubt, variances, count_variance, z)
        slopes = np.minimum(slopes, self._doubled_on_diagonal(np.full_like(slopes, reach)))
        half = z * np.sqrt(variances + count_variance * slopes**2)
        least, largest = self._within(self.covariance, half, 0.0, self.norm_bound**2)
        if not self.full:
            return least, largest
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
        excess = np.sum(self.mean**2, axis=-1) - d * self.mean_variance
        return np.maximum(excess, 0.0) / (1 + self._count_variance)

    def trace_variance(self) -> Array:
        """Var tr Σ̂, shape (…)."""
        square = self.mean_square()
        slope = self._trace() - square
        return self._trace_variance(square) + self._count_variance * slope**2

    def error_square(self) -> Array:
        """E‖Σ̂ − Σ‖_F² over the noise of this release, shape (…)."""
        d = self.mean.shape[-1]
        v = self.mean_variance
        square = self.mean_square()
        slopes = self._count_slopes()
        if not self.full:
            counted = self._count_variance * np.sum(slopes**2, axis=-1)
            return self._trace_variance(square) + counted
        counted = self._count_variance * np.sum(slopes**2, axis=(-2, -1))
        growth = square / self.count_weight**2  # of I + κ²mmᵀ
        outer = 2 * v**2 * ((d + 1) * growth + growth**2)
        linear = 2 * (d + 1) * v * square
        return d * (d + 1) * (self.second_variance / 2 + v**2) + linear + counted + outer

    def axis_variance(self) -> Array:
        """Var xᵀΣ̂x on average over unit vectors x, shape (…); over a column without products.

        For a symmetric error F that is (tr² F + 2‖F‖²)/(d(d + 2)).
        """
        d = self.mean.shape[-1]
        if not self.full:
            return self.error_square() / d
        return (self.trace_variance() + 2 * self.error_square()) / (d * (d + 2))

    def trace_interval(self, level: float = 0.95) -> Interval:
        """Interval of tr Σ, the sum of the variances, within [0, ζ²]."""
        missed = 1 - _checked(level)
        norm = np.linalg.norm(self.mean, axis=-1)
        square = self._largest_norm(norm, missed) ** 2
        variance = self._trace_variance(square)
        z = _normal_quantile(1 - (1 - _MEAN_SHARE) * missed / 2)
        trace = self._trace()
        doubt = square - self.mean_square()
        slope = np.abs(trace - self.mean_square()) + doubt
        slope = _largest(slope, variance, self._count_variance, z)
        slope = np.minimum(slope, self.norm_bound**2)
        half = z * np.sqrt(variance + self._count_variance * slope**2)
        return self._within(trace, half, 0.0, self.norm_bound**2)

    @property
    def _count_variance(self) -> Array:
        """vκ², the relative variance of the count."""
        return np.asarray(self.mean_variance) / self.count_weight**2

    def _count_slopes(self) -> Array:
        """Σ̂ − m̂m̂ᵀ, by which −κf is multiplied, in the shape of Σ̂."""
        if self.full:
            return self.covariance - self.mean[..., :, None] * self.mean[..., None, :]
        return self.covariance - self.mean**2

    def _pair_sums(self, squares: Array) -> Array:
        """m_a² + m_b² in the shape of Σ̂, from m_a²."""
        if self.full:
            return squares[..., :, None] + squares[..., None, :]
        return 2 * squares

    def _largest_norm(self, norm: Array, missed: float) -> Array:
        """Upper limit of the norm of some coordinates of m, exceeded with chance β.

        Args:
            norm: that of m̂, shape (…), or (…, 1, …) with axes of size d.
            missed: 1 − level.
        """
        z = _normal_quantile(1 - _MEAN_SHARE * missed)
        shape = (*np.shape(self.mean_variance), *[1] * (norm.ndim - np.ndim(self.mean_variance)))
        v = np.reshape(self.mean_variance, shape)
        largest = _largest(norm, v, np.reshape(self._count_variance, shape), z)
        return np.minimum(largest, np.maximum(norm, self.norm_bound))

    def _largest_pair_sums(self, missed: float) -> Array:
        """Upper limits of m_a² + m_b² in the shape of Σ̂, each exceeded with chance β."""
        alone = 2 * self._largest_norm(np.abs(self.mean), missed) ** 2
        if not self.full:
            return alone
        pairs = np.hypot(self.mean[..., :, None], self.mean[..., None, :])
        together = self._largest_norm(pairs, missed) ** 2
        index = np.arange(self.mean.shape[-1])
        together[..., index, index] = alone
        return together

    def _variances(self, sums: Array) -> Array:
        """Var of each entry without the share of the count, for given m_a² + m_b².

        Of W_ab² and W_aa·W_bb the parts with κ⁴ are taken together at their maximum, (κ²(m_a² +
        m_b²))²/2.
        """
        v = self._per_entry(self.mean_variance)
        growth = sums / self.count_weight**2
        outer = v**2 * (1 + growth + growth**2 / 2)
        return self._doubled_on_diagonal(
            self._per_entry(self.second_variance) / 2 + v * sums + outer
        )

    def _trace_variance(self, square: Array) -> Array:
        """Var tr Σ̂ without the share of the count, for given ‖m‖²."""
        d = self.mean.shape[-1]
        v = self.mean_variance
        growth = square / self.count_weight**2
        outer = 2 * v**2 * (d + 2 * growth + growth**2)
        return d * self.second_variance + 4 * v * square + outer

    def _trace(self) -> Array:
        variances = self.covariance
        if self.full:
            variances = _diagonal(self.covariance)
        return np.sum(variances, axis=-1)

    def _per_entry(self, values: Array) -> Array:
        """A number per release, shaped to broadcast over the covariance."""
        axes = self.covariance.ndim - np.ndim(values)
        return np.reshape(values, (*np.shape(values), *[1] * axes))

    def _doubled_on_diagonal(self, values: Array) -> Array:
        """In the shape of Σ̂; all are on the diagonal where only that was released."""
        if not self.full:
            return 2 * values
        index = np.arange(self.mean.shape[-1])
        values[..., index, index] *= 2
        return values

    def _within(self, center: Array, half: Array, least: float, most: float) -> Interval:
        return np.clip(center - half, least, most), np.clip(center + half, least, most)


def _diagonal(matrices: Array) -> Array:
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def _largest(estimate: Array, variance: Array, growth: Array, z: float) -> Array:
    """The largest x with x − estimate ≤ z·√(variance + growth·x²); infinite if there is none."""
    rest = 1 - z**2 * np.asarray(growth)
    root = z * np.sqrt(variance * np.maximum(rest, 0.0) + growth * estimate**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rest > 0, (estimate + root) / rest, np.inf)


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
