"""Expected squared errors of the moment estimators, and the plain unbiased estimate of a Gaussian.

τ₁ and τ₂ are standard deviations of the entries of Z₁ and Z₂ (`MomentMechanism.first_std`,
`second_std`) and Q = C₁⁻¹C₁⁻ᵀ. Errors are squared Frobenius norms, one for each step.
docs/theory/moments.md lists them; docs/dev/errata.md lists where they differ from the paper.
"""

from __future__ import annotations

import numpy as np
import torch

from fedmf.matrices.arrays import Array
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments import GaussianEstimate, MomentMechanism, NoisyMomentSums


def first_moment_errors(mechanism: MomentMechanism, workload: Array, dimension: int) -> Array:
    """E‖Ŷ_t − Y_t‖² = d·τ₁²·‖(A₁C₁⁻¹)_t‖² for every step, shape (n,), whatever the data.

    Args:
        mechanism: any of the methods.
        workload: A₁, shape (n, n).
        dimension: d.

    References:
        Kalinin, Upadhyay and Lampert (2025), equation (3).
    """
    return dimension * mechanism.first_std**2 * _row_squares(workload, mechanism.first)


def second_moment_errors(mechanism: MomentMechanism, workload: Array, noises: int) -> Array:
    """E‖Ŝ_t − S_t‖² = m·τ₂²·‖(A₂C₂⁻¹)_t‖², shape (n,), for methods with a second noise of their
    own.

    Args:
        mechanism: JME, IME or CS.
        workload: A₂, shape (n, n).
        noises: m, how many independent noises there are: `SecondMoment.size`, d(d+1)/2 for the
            symmetric matrix; d² gives the error of the paper, which does not symmetrize.

    Raises:
        ValueError: the mechanism has no second noise.

    References:
        Kalinin, Upadhyay and Lampert (2025), equation (4).
    """
    second, second_std = mechanism.second_noise
    return noises * second_std**2 * _row_squares(workload, second)


def second_moment_errors_by_squaring(
    first_std: float, strategy: Factorization, workload: Array, data: Array, debiased: bool = True
) -> Array:
    """E‖Ŝ_t − S_t‖² of post-processing, for the data given, shape (n,).

    With weights a = (A₂)_t: Σ_{i,j} a_i a_j (2(d+1)τ₁² Q_ij ⟨x_i, x_j⟩ + d(d+1)τ₁⁴ Q_ij² + dτ₁⁴
    Q_ii Q_jj), where debiasing removes the last term.

    Args:
        first_std: τ₁.
        strategy: C₁.
        workload: A₂, shape (n, n).
        data: X, shape (n, d).
        debiased: whether the bias is subtracted.

    References:
        Kalinin, Upadhyay and Lampert (2025), Lemma 3.8, in absolute noise levels.
    """
    d = data.shape[1]
    Q = _noise_covariance(strategy)
    linear = 2 * (d + 1) * first_std**2 * Q * (data @ data.T)
    square = d * (d + 1) * first_std**4 * Q**2
    kernel = linear + square
    if not debiased:
        kernel = kernel + d * first_std**4 * np.outer(np.diag(Q), np.diag(Q))
    return np.einsum("ti,ij,tj->t", workload, kernel, workload, optimize=True)


def squaring_supremum_bounds(strategy: Factorization, workload: Array) -> tuple[float, float]:
    """Bounds on sup_X Σ_{ij} [A₂ᵀA₂∘Q]_ij ⟨x_i, x_j⟩ over ‖x_i‖ ≤ 1: equal rows below, absolute
    values above.

    They coincide where Q has no negative entries, as for C₁ = I.

    References:
        Kalinin, Upadhyay and Lampert (2025), Lemma C.1.
    """
    kernel = (workload.T @ workload) * _noise_covariance(strategy)
    return float(kernel.sum()), float(np.abs(kernel).sum())


def covariance_errors(
    first_std: float,
    second_std: float,
    first: Factorization,
    second: Factorization,
    workload: Array,
    data: Array,
    noises: int,
    debiased: bool = True,
) -> Array:
    """E‖Σ̂_t − Σ_t‖² of Σ̂ = Ŝ − μ̂μ̂ᵀ with noises of its own for Ŝ, for the data given, shape
    (n,).

    With q₁ = ‖(AC₁⁻¹)_t‖² and q₂ alike: m·τ₂²q₂ + 2(d+1)τ₁²q₁‖μ_t‖² + d(d+1)τ₁⁴q₁²; without adding
    the bias τ₁²q₁·I back, d(d+2) instead of d(d+1).

    Args:
        first_std: τ₁.
        second_std: τ₂.
        first: C₁.
        second: C₂.
        workload: A of both moments, the running average as a rule, shape (n, n).
        data: X, shape (n, d).
        noises: m, as in `second_moment_errors`.
        debiased: whether the bias is removed.

    References:
        Kalinin, Upadhyay and Lampert (2025), Theorem 4.1, for C₁ = C₂ = I and the worst data (‖μ_t‖
        = 1).
    """
    d = data.shape[1]
    q_1 = first_std**2 * _row_squares(workload, first)
    q_2 = second_std**2 * _row_squares(workload, second)
    means = np.sum((workload @ data) ** 2, axis=1)
    return noises * q_2 + 2 * (d + 1) * q_1 * means + d * (d + (1 if debiased else 2)) * q_1**2


def covariance_errors_by_squaring(
    first_std: float, strategy: Factorization, workload: Array, data: Array, debiased: bool = True
) -> Array:
    """E‖Σ̂_t − Σ_t‖² where Σ̂ = Σ_i a_i x̂_i x̂_iᵀ − μ̂μ̂ᵀ is made of the private rows alone, shape
    (n,).

    Σ̂_t = X̂ᵀM X̂ with M = diag(a) − aaᵀ for a = A_t. With K = τ₁²·C⁻ᵀMC⁻¹ (as C⁻ᵀ(·)C⁻¹ on the
    rows of Z) and U = τ₁·XᵀMC⁻¹: 2(d+1)‖U‖² + d(d+1)‖K‖², and d·tr(K)² more where the bias tr(K)·I
    stays.

    Args:
        first_std: τ₁.
        strategy: C₁.
        workload: A, shape (n, n).
        data: X, shape (n, d).
        debiased: whether the bias is removed.

    References:
        Kalinin, Upadhyay and Lampert (2025), Theorem 4.2, gives bounds for C₁ = I and the worst
        data.
    """
    n, d = data.shape
    inverse = np.linalg.inv(strategy.materialize())
    errors = np.empty(n)
    for t in range(n):
        a = workload[t, : t + 1]
        noise = first_std * inverse[: t + 1, : t + 1]
        centered = a[:, None] * noise - np.outer(a, a @ noise)
        K = noise.T @ centered
        U = data[: t + 1].T @ centered
        errors[t] = 2 * (d + 1) * np.sum(U**2) + d * (d + 1) * np.sum(K**2)
        if not debiased:
            errors[t] += d * np.trace(K) ** 2
    return errors


def _row_squares(workload: Array, strategy: Factorization) -> Array:
    """‖(A C⁻¹)_t‖²."""
    solved = np.linalg.solve(strategy.materialize().T, workload.T)
    return np.sum(solved**2, axis=0)


def _noise_covariance(strategy: Factorization) -> Array:
    inverse = np.linalg.inv(strategy.materialize())
    return inverse @ inverse.T


def mean_noise_variances(mechanism: MomentMechanism, workload: ToeplitzWorkload) -> torch.Tensor:
    """Var of each coordinate of μ̂_t: τ₁²·‖(A₁C₁⁻¹)_t‖², shape (n,)."""
    variances = query_variances(mechanism.first, workload)
    return torch.from_numpy(mechanism.first_std**2 * variances)


def gaussian_estimate(
    release: NoisyMomentSums, noise_variance: float | None = None
) -> GaussianEstimate:
    """μ̂ and Σ̂ = Ŝ − μ̂μ̂ᵀ from a release of running averages.

    Args:
        release: of the running-average workload with the full second moment.
        noise_variance: the variance of a coordinate of μ̂ at this step (`mean_noise_variances`):
            E[μ̂μ̂ᵀ] exceeds μμᵀ by that times I, which is added back; None leaves the bias.

    References:
        Kalinin, Upadhyay and Lampert (2025), section 4.1 and equation (62).
    """
    first = release.first
    second = release.second
    covariance = second - torch.outer(first, first)
    if noise_variance is not None:
        covariance = covariance + noise_variance * torch.eye(len(first), dtype=covariance.dtype)
    return GaussianEstimate(first, covariance)


def divergence(one: GaussianEstimate, other: GaussianEstimate) -> float:
    """KL(one ‖ other) in nats."""
    normal = torch.distributions.MultivariateNormal
    return float(
        torch.distributions.kl_divergence(*(normal(g.mean, g.covariance) for g in (one, other)))
    )
