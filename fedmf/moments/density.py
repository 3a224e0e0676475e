"""Gaussian densities from private moments: positive definite covariances and their uncertainty.

`PrivateGaussian` is the density of one release; `describe` gives its fields for many releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import numpy as np
import torch

from fedmf.matrices.arrays import Array
from fedmf.moments.noisy_moments import Interval, NoisyMoments

#: Standard errors below zero at which the lift of an eigenvalue ends: a tenth of one is left there.
_DEEPEST = -10.0
#: A correlation with an interval wider than this is too noisy to be stated.
_WIDEST = 1.0
#: Above this ρ a covariance says little more than the average variance. ρ is the weight of the
#: average variance in it, and estimates the share of noise in the square distance of Σ̂ from a
#: multiple of the identity.
_MOSTLY_AVERAGE = 0.9


@dataclass(frozen=True, eq=False)
class GaussianEstimate:
    """N(μ̂, Σ̂) as released: Σ̂ is symmetric but need not be positive definite before `projected`.

    Args:
        mean: μ̂, shape (d,).
        covariance: Σ̂, shape (d, d), symmetric.

    >>> wild = GaussianEstimate(torch.zeros(2), torch.diag(torch.tensor([1.0, -0.5])))
    >>> wild.projected(0.01).covariance.diagonal()
    tensor([1.0000, 0.0100])
    """

    mean: torch.Tensor
    covariance: torch.Tensor

    def projected(self, least_eigenvalue: float) -> GaussianEstimate:
        """The closest covariance (Frobenius norm) with eigenvalues of at least the given one.

        Raises:
            ValueError: the least eigenvalue is not positive.
        """
        if not 0 < least_eigenvalue < math.inf:
            raise ValueError(f"least eigenvalue must be positive; got {least_eigenvalue}.")
        values, vectors = torch.linalg.eigh(self.covariance)
        lifted = (vectors * values.clamp_min(least_eigenvalue)) @ vectors.mT
        return replace(self, covariance=(lifted + lifted.mT) / 2)

    def log_density(self, x: torch.Tensor) -> torch.Tensor:
        """log N(x; μ̂, Σ̂) for x of shape (…, d), shape (…).

        Raises:
            ValueError: Σ̂ is not positive definite.
        """
        determinant = 2 * self._cholesky().diagonal().log().sum()
        return -0.5 * (self.distances(x) + determinant + len(self.mean) * math.log(2 * math.pi))

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        """(x − μ̂)ᵀΣ̂⁻¹(x − μ̂), squared Mahalanobis distances, for x of shape (…, d), shape (…).

        Raises:
            ValueError: Σ̂ is not positive definite.
        """
        centered = torch.linalg.solve_triangular(
            self._cholesky(), (x - self.mean)[..., None], upper=False
        )
        return (centered[..., 0] ** 2).sum(-1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Synthetic rows, shape (count, d): post-processing, so as private as the release.

        Raises:
            ValueError: Σ̂ is not positive definite.
        """
        L = self._cholesky()
        drawn = torch.randn(count, len(self.mean), dtype=L.dtype, generator=generator)
        return self.mean + drawn @ L.mT

    def _cholesky(self) -> torch.Tensor:
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        if int(info):
            raise ValueError(
                f"Sigma (covariance) must be positive definite; got leading minor {int(info)} that"
                " is not. Call projected(least_eigenvalue) first."
            )
        return factor


def shrunk_covariances(raw: NoisyMoments) -> tuple[Array, Array]:
    """Positive definite covariances near the unbiased ones, and their shrinkage ρ.

    1. Σ₁ = (1 − ρ)Σ̂ + ρ(tr Σ̂/d)·I with ρ = min(1, (1 − 2/p)·N/‖Σ̂ − (tr Σ̂/d)·I‖²): James and
       Stein's (1961) move towards a multiple of the identity; the squared error is never larger
       where noise is Gaussian. N = E‖Σ̂ − Σ‖² − Var(tr Σ̂)/d is the noise in that distance and p =
       d(d+1)/2 − 1 its dimension (d − 1 for variances alone); for p ≤ 2, so for d = 2, ρ = 0.
    2. Each eigenvalue μ of Σ₁ becomes E[θ | θ ≥ 0] for θ ~ N(μ, s²), μ + s·φ(μ/s)/Φ(μ/s), where s
       is the standard error of xᵀΣ₁x, on average over unit vectors x: positive always, and μ itself
       where that is well above the noise. For one number known to be positive its squared error is
       nowhere above s² (Katz 1961).
    3. A trace above ζ², more than rows of that norm can have, is scaled to it.

    The bias this costs: ρ(tr Σ/d·I − Σ) from the first step, and at most 0.8 s for each eigenvalue
    from the second where μ ≥ 0. Both vanish with the noise.

    Args:
        raw: of one step or many.

    Returns:
        Shape of `raw.covariance`, and ρ, shape (…).
    """
    d = raw.mean.shape[-1]
    if raw.full:
        values, vectors = np.linalg.eigh(raw.covariance)
        dimension = d * (d + 1) // 2 - 1
    else:
        values = raw.covariance
        vectors = None
        dimension = d - 1
    center = values.mean(axis=-1, keepdims=True)
    spread = np.sum((values - center) ** 2, axis=-1)
    trace_variance = raw.trace_variance()
    share = max(dimension - 2, 0) / max(dimension, 1)
    noise = share * np.maximum(raw.error_square() - trace_variance / d, 0.0)
    rho = noise / np.maximum(np.maximum(spread, noise), np.finfo(np.float64).tiny)
    shrunk = (1 - rho)[..., None] * values + rho[..., None] * center
    of_average = trace_variance / d**2
    error = np.sqrt((1 - rho) ** 2 * (raw.axis_variance() - of_average) + of_average)[..., None]
    lifted = error * _lifted(shrunk / error)
    traces = lifted.sum(axis=-1, keepdims=True)
    lifted = lifted * np.minimum(1.0, raw.norm_bound**2 / traces)
    if vectors is None:
        return lifted, rho
    matrices = (vectors * lifted[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return (matrices + np.swapaxes(matrices, -1, -2)) / 2, rho


@final
@dataclass(frozen=True, eq=False)
class PrivateGaussian:
    """The density N(μ, Σ) of a stream's release: as private as the release, and usable as it is.

    Its intervals hold the mean and covariance of the clipped rows, with the weights of the
    workload; they say nothing of a population that the rows were drawn from.

    Args:
        raw: the released moments, unbiased.

    Attributes:
        mean: μ, the released one, shortened to ζ if it is longer, shape (d,).
        covariance: Σ, positive definite, shape (d, d), or variances, shape (d,):
            `shrunk_covariances`.
        shrinkage: ρ, the part by which Σ̂ was moved to a multiple of the identity.

    >>> covariance = np.array([[0.04, 0.05], [0.05, 0.03]])
    >>> density = PrivateGaussian(NoisyMoments(np.array([0.3, 0.2]), covariance, 1e-4, 1e-4, 1.0))
    >>> bool(np.linalg.eigvalsh(covariance)[0] < 0 < np.linalg.eigvalsh(density.covariance)[0])
    True
    >>> [round(float(end[0]), 2) for end in density.mean_interval()]
    [0.28, 0.32]
    """

    raw: NoisyMoments
    mean: Array = field(init=False)
    covariance: Array = field(init=False)
    shrinkage: float = field(init=False)

    def __post_init__(self) -> None:
        covariance, rho = shrunk_covariances(self.raw)
        norm = float(np.linalg.norm(self.raw.mean))
        mean = self.raw.mean * (self.raw.norm_bound / max(norm, self.raw.norm_bound))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)
        object.__setattr__(self, "shrinkage", float(rho))

    @classmethod
    def of(
        cls,
        mean: Array,
        covariance: Array,
        mean_error: float,
        second_error: float,
        norm_bound: float,
    ) -> Self:
        """The density of the fields of a release, with the standard errors √v and √v₂."""
        raw = NoisyMoments(
            mean=np.asarray(mean),
            covariance=np.asarray(covariance),
            mean_variance=np.array(mean_error**2),
            second_variance=np.array(second_error**2),
            norm_bound=norm_bound,
        )
        return cls(raw)

    @property
    def estimate(self) -> GaussianEstimate:
        """The density in torch: samples, divergences, distances of rows."""
        matrix = self.covariance
        if not self.raw.full:
            matrix = np.diag(self.covariance)
        return GaussianEstimate(torch.from_numpy(self.mean.copy()), torch.from_numpy(matrix.copy()))

    def mean_interval(self, level: float = 0.95) -> Interval:
        """Exact interval of each m_a (`NoisyMoments.mean_interval`)."""
        return self.raw.mean_interval(level)

    def correlations(self, level: float = 0.95) -> tuple[Array, Array, Array]:
        """Correlations and the lower and upper ends of their intervals, shape (d, d).

        A value comes from the unbiased covariance, moved into its interval; it is NaN where the
        interval is wider than 1, which is too noisy.

        Raises:
            ValueError: only the diagonal of the covariance was released.
        """
        return _correlations(self.raw, level)

    @property
    def too_noisy(self) -> str:
        """A statement that the covariance as a whole is too noisy; empty if it is not."""
        return verdict(float(self.raw.trace_interval()[0]), self.shrinkage)


def verdict(least_trace: float, shrinkage: float) -> str:
    """Say whether a covariance is too noisy, from the lower end of its trace and ρ."""
    if least_trace <= 0:
        return "too noisy to say how large the variances are"
    if shrinkage > _MOSTLY_AVERAGE:
        return "too noisy to say much more than the average variance"
    return ""


def _correlations(raw: NoisyMoments, level: float) -> tuple[Array, Array, Array]:
    low, high = raw.correlation_interval(level)
    variances = np.diagonal(raw.covariance, axis1=-2, axis2=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.sqrt(variances)
        value = raw.covariance / (deviations[..., :, None] * deviations[..., None, :])
    return np.where(high - low > _WIDEST, np.nan, np.clip(value, low, high)), low, high


def _lifted(z: Array) -> Array:
    """z + φ(z)/Φ(z), the mean of N(z, 1) above zero."""
    from scipy.special import log_ndtr

    z = np.maximum(z, _DEEPEST)
    return z + np.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(z))


def describe(raw: NoisyMoments) -> dict[str, Any]:
    """Fields of many releases at once, by name; each as `PrivateGaussian` has it for one."""
    covariance, rho = shrunk_covariances(raw)
    low, high = raw.covariance_interval()
    fields: dict[str, Any] = {
        "density_covariance": covariance,
        "shrinkage": rho,
        "covariance_low": low,
        "covariance_high": high,
    }
    if raw.full:
        correlation, low, high = _correlations(raw, 0.95)
        fields["correlation"] = correlation
        fields["correlation_low"] = low
        fields["correlation_high"] = high
    verdicts = []
    least_traces, _ = raw.trace_interval()
    for least_trace, shrinkage in zip(least_traces, rho, strict=True):
        text = verdict(float(least_trace), float(shrinkage))
        verdicts.append(text)
    fields["too_noisy"] = np.array(verdicts, dtype=object)
    return fields
