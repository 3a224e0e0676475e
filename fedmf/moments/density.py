"""A Gaussian density from private running moments: unbiased covariance, projection, log-density, KL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments.mechanism import MomentMechanism


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
        """The closest covariance (Frobenius norm) whose eigenvalues are at least the given one.

        Raises:
            ValueError: the least eigenvalue is not positive.
        """
        if not 0 < least_eigenvalue < math.inf:
            raise ValueError(f"least eigenvalue must be positive; got {least_eigenvalue}.")
        values, vectors = torch.linalg.eigh(self.covariance)
        lifted = (vectors * values.clamp_min(least_eigenvalue)) @ vectors.mT
        return replace(self, covariance=(lifted + lifted.mT) / 2)

    def shrunk(self, share: float) -> GaussianEstimate:
        """(1 − ρ)Σ̂ + ρ·(tr Σ̂/d)·I: less variance for some bias; ρ must not depend on private data.

        Raises:
            ValueError: ρ is outside [0, 1].
        """
        if not 0 <= share <= 1:
            raise ValueError(f"rho (shrinkage) must be in [0, 1]; got {share}.")
        d = len(self.mean)
        even = torch.eye(d, dtype=self.covariance.dtype) * (self.covariance.trace() / d)
        return replace(self, covariance=(1 - share) * self.covariance + share * even)

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
        centred = torch.linalg.solve_triangular(self._cholesky(), (x - self.mean)[..., None], upper=False)
        return (centred[..., 0] ** 2).sum(-1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Synthetic rows, shape (count, d): post-processing, so as private as the release.

        Raises:
            ValueError: Σ̂ is not positive definite.
        """
        L = self._cholesky()
        drawn = torch.randn(count, len(self.mean), dtype=L.dtype, generator=generator)
        return self.mean + drawn @ L.mT

    def kl_to(self, other: GaussianEstimate) -> float:
        """KL(this ‖ other) in nats.

        Raises:
            ValueError: one of the two is not positive definite.
        """
        mine, theirs, d = self._cholesky(), other._cholesky(), len(self.mean)
        ratio = torch.linalg.solve_triangular(theirs, mine, upper=False)
        apart = torch.linalg.solve_triangular(theirs, (other.mean - self.mean)[:, None], upper=False)
        determinants = theirs.diagonal().log().sum() - mine.diagonal().log().sum()
        return float(0.5 * ((ratio**2).sum() + (apart**2).sum() - d) + determinants)

    def _cholesky(self) -> torch.Tensor:
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        if int(info):
            raise ValueError(
                f"Sigma (covariance) must be positive definite; got leading minor {int(info)} that is not. "
                "Call projected(least_eigenvalue) first."
            )
        return factor


def mean_noise_variances(mechanism: MomentMechanism, workload: ToeplitzWorkload) -> torch.Tensor:
    """Var of each coordinate of μ̂_t: τ₁²·‖(A₁C₁⁻¹)_t‖², shape (n,).

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.mechanisms.joint import UserRange
    >>> from fedmf.moments import pp
    >>> from fedmf.participation import Participation
    >>> from fedmf.mechanisms.workload import average
    >>> made = pp(identity(2), Participation(2, 1, 2), UserRange(1.0, 2), noise_multiplier=1.0)
    >>> mean_noise_variances(made, average(2))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    variances = query_variances(mechanism.first, workload)
    return torch.from_numpy(mechanism.first_std**2 * variances)


class RunningMoments(Protocol):
    """First and second moment of one step, as tensors or arrays."""

    @property
    def first(self) -> Any:
        """Estimate of the mean, shape (d,)."""
        ...

    @property
    def second(self) -> Any:
        """Estimate of the second moment, shape (d, d)."""
        ...


def gaussian_estimate(release: RunningMoments, noise_variance: float | None = None) -> GaussianEstimate:
    """μ̂ and Σ̂ = Ŝ − μ̂μ̂ᵀ from a release of running averages.

    Args:
        release: of the running-average workload with the full second moment; the moments of one user a step.
            `PrivateRelease.gaussian` gives more, from the same numbers.
        noise_variance: the variance of a coordinate of μ̂ at this step (`mean_noise_variances`): E[μ̂μ̂ᵀ]
            exceeds μμᵀ by that times I, which is added back; None leaves the bias.

    Raises:
        ValueError: the second moment is not a d×d matrix.

    References:
        Kalinin, Upadhyay and Lampert (2025), section 4.1 and equation (62).
    """
    first, second = (torch.as_tensor(moment) for moment in (release.first, release.second))
    d = len(first)
    if second.shape != (d, d):
        raise ValueError(
            f"S (second moment) must be the {d}x{d} matrix; got shape {tuple(second.shape)}. "
            "Release FullMatrix for a density."
        )
    covariance = second - torch.outer(first, first)
    if noise_variance is not None:
        covariance = covariance + noise_variance * torch.eye(d, dtype=covariance.dtype)
    return GaussianEstimate(first, covariance)
