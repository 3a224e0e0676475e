"""What rounding the vectors that a stream keeps costs in privacy: how far it can move the noise, proved."""

from __future__ import annotations

import math

import numpy as np

from fedmf.factorization.algebra import inverse_row_norms
from fedmf.factorization.streaming.inverse import StreamingInverse
from fedmf.factorization.streaming.recurrence import Recurrence
from fedmf.factorization.streaming.state_space import StateSpace
from fedmf.participation import Participation
from fedmf.typing import Vector

FLOAT32 = 2.0**-24
# Rounding error of numbers too small for a relative bound: enough for float32, float64 and bfloat16.
_SMALLEST = 2.0**-133
# An inflation of more than 2 would rather be paid in memory.
_LARGEST_SHARE = 0.5


def rounding_inflation(
    inverse: StreamingInverse,
    participation: Participation,
    dimension: int,
    noise_multiplier: float,
    *,
    failure: float = 1e-20,
    unit_roundoff: float = FLOAT32,
) -> float:
    """The factor, at least 1, by which the noise must be larger where kept vectors are rounded.

    Without rounding the releases of two neighbouring data sets differ by μ = 1/σ standard deviations at
    most, with rounding by μ + W. With the noise scale multiplied by 1/(1 − W/μ) it is μ again.

    Args:
        inverse: C⁻¹ as it is streamed: a `Recurrence` with one feedforward coefficient, or a `StateSpace`.
        participation: (n, k, b) of the run.
        dimension: d of the whole vector, not of a shard.
        noise_multiplier: σ, the scale's multiple of ζ·sens(C).
        failure: β, probability with which some row of noise exceeds the norm assumed for it.
        unit_roundoff: u, the relative error of rounding to nearest; that of float32 if not given.

    Returns:
        F for `NoiseStream(inflation=F)`.

    Raises:
        ValueError: C⁻¹ has a form that must be kept in float64, an argument is out of range, or W > μ/2.

    Guarantees:
        With scale F·ζ·σ·sens(C) and any adaptive choice of updates, the n releases satisfy
        (ε, δ(ε) + β)-differential privacy for every ε, with δ(ε) that of the Gaussian mechanism with noise
        multiplier σ. No amplification by sampling is claimed. Proof: docs/theory/noise-streams.md.

    >>> from fedmf.factorization import Toeplitz
    >>> inverse, contract = Toeplitz([1.0, 0.5], 100).recurrence(), Participation(100, 4, 25)
    >>> 1 < rounding_inflation(inverse, contract, 10**6, noise_multiplier=1.0) < 1.0002
    True
    """
    shift = rounding_shift(
        inverse, participation, dimension, noise_multiplier, failure=failure, unit_roundoff=unit_roundoff
    )
    share = shift * noise_multiplier
    if not share <= _LARGEST_SHARE:
        raise ValueError(
            f"W (shift by rounding of kept vectors) must be at most {_LARGEST_SHARE}/sigma = "
            f"{_LARGEST_SHARE / noise_multiplier:.3g}; got {shift:.3g} over n={inverse.rounds} rounds with "
            f"d={dimension}. Keep the vectors in float64."
        )
    return 1.0 / (1.0 - share)


def rounding_shift(
    inverse: StreamingInverse,
    participation: Participation,
    dimension: int,
    noise_multiplier: float,
    *,
    failure: float = 1e-20,
    unit_roundoff: float = FLOAT32,
) -> float:
    """W ≥ ‖w‖, in standard deviations, for what rounding adds to the difference of two neighbours' z.

    With fixed releases, neighbours with noise y and y' need z and z' with z' − z = C(y' − y) + w. For a ring,
    w_t = Σ_j g_tj (e(y'_{t−j}) − e(y_{t−j}))/f_t, e being rounding errors; for decaying sums,
    w_t = Σ_i ω_i Σ_{s<t} θ_i^{t−1−s} (ρ'_i(s) − ρ_i(s)). Arguments as for `rounding_inflation`.

    Returns:
        A bound that holds unless some row of noise has a norm of less probability than β.

    Raises:
        ValueError: as for `rounding_inflation`, but for the size of W, which may be infinite.
    """
    if participation.rounds > inverse.rounds:
        raise ValueError(
            f"n (rounds of the participation) must be at most n={inverse.rounds} of C^-1; "
            f"got {participation.rounds}."
        )
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        raise ValueError(f"d (dimension) must be an integer of at least 1; got {dimension!r}.")
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"sigma (noise multiplier) must be positive and finite; got {noise_multiplier}.")
    if not 0 < failure < 1:
        raise ValueError(f"beta (failure probability) must satisfy 0 < beta < 1; got {failure}.")
    if not 0 < unit_roundoff < 1:
        raise ValueError(f"u (unit roundoff) must satisfy 0 < u < 1; got {unit_roundoff}.")
    tiny, mu = _SMALLEST * math.sqrt(dimension), 1.0 / noise_multiplier
    # ‖N(0, I_d)‖ exceeds √d + x with probability below exp(−x²/2): norms are 1-Lipschitz.
    norms = inverse.rounds * max(1, inverse.memory_vectors)
    largest = math.sqrt(dimension) + math.sqrt(2.0 * math.log(norms / failure))
    match inverse:
        case Recurrence() if inverse.feedforward.shape[-1] == 1 and inverse.feedforward.all():
            return _ring_shift(inverse, participation, unit_roundoff, tiny, largest, mu)
        case StateSpace():
            return _state_shift(inverse, participation, unit_roundoff, tiny, largest, mu)
        case _:
            raise ValueError(
                "dtype (of stored vectors) must be float64 for this form of C^-1; got a narrower one for "
                f"{type(inverse).__name__}."
            )


def _ring_shift(
    inverse: Recurrence, participation: Participation, u: float, tiny: float, largest: float, mu: float
) -> float:
    k, b, r = participation.max_participations, participation.min_separation, inverse.memory_vectors
    rows, columns, column, response, reach = _ring_sums(inverse)
    # y = H(z + ε) with ‖ε_t‖ ≤ rows·(u·B + tiny), so B ≤ response·largest + reach·rows·(u·B + tiny).
    loop = reach * rows
    if u * loop >= 1:
        return math.inf
    size = (response * largest + loop * tiny) / (1.0 - u * loop)
    # μ bounds every admissible shift, and one participation's is at least ‖y'_t − y_t‖/|f_t|.
    error = u * (2.0 * size + mu * float(np.abs(inverse.feedforward).max())) + 2.0 * tiny
    # Columns r apart have no row in common: ⌈r/b⌉ classes of participations with orthogonal columns.
    spread = min(column * math.sqrt(min(k, -(-r // b))), math.sqrt(rows * columns))
    return math.sqrt(k) * spread * error


def _ring_sums(inverse: Recurrence) -> tuple[float, float, float, float, float]:
    """Of N with N_{t,t−j} = g_tj/f_t: largest row sum, column sum and column norm; of H = (N + 1/f)⁻¹:
    largest row norm, and a bound of its row sums."""
    n, r = inverse.rounds, inverse.memory_vectors
    if inverse.feedforward.ndim == 1 and inverse.feedback.ndim == 1:
        from scipy.signal import lfilter

        taps = np.abs(inverse.feedback[: n - 1] / inverse.feedforward[0])
        h = np.asarray(lfilter(inverse.feedforward, np.append(1.0, inverse.feedback), np.eye(1, n)[0]))
        total = float(taps.sum())
        return total, total, float(np.linalg.norm(taps)), float(np.linalg.norm(h)), float(np.abs(h).sum())
    f = np.broadcast_to(inverse.feedforward.reshape(-1, 1)[:, 0], (n,))
    g = np.broadcast_to(inverse.feedback, (n, r))
    band = np.zeros((n, min(r, n - 1) + 1))
    band[:, 0] = 1.0 / f
    for lag in range(1, band.shape[1]):
        band[: n - lag, lag] = g[lag:, lag - 1] / f[lag:]
    below = np.abs(band[:, 1:])
    rows = np.zeros(n)
    for lag in range(1, band.shape[1]):
        rows[lag:] += below[: n - lag, lag - 1]
    response = math.sqrt(inverse_row_norms(band).max())
    column = math.sqrt((below**2).sum(axis=1).max())
    return float(rows.max()), float(below.sum(axis=1).max()), column, response, math.sqrt(n) * response


def _state_shift(
    inverse: StateSpace, participation: Participation, u: float, tiny: float, largest: float, mu: float
) -> float:
    n, k, b = inverse.rounds, participation.max_participations, participation.min_separation
    period = n if inverse.period is None else min(inverse.period, n)
    theta, omega = np.abs(inverse.decays), np.abs(inverse.output_weights)
    powers = theta[:, None] ** np.arange(period)
    reach = powers.sum(axis=1)
    norms, sums = _state_responses(inverse, period)
    # a_i = θ_i S_i + y before rounding: ‖a_i‖ ≤ norms·largest + loop·(u·max‖a‖ + tiny).
    loop = sums * float(omega @ reach) + reach
    if u * loop.max() >= 1:
        return math.inf
    most = (norms.max() * largest + loop.max() * tiny) / (1.0 - u * loop.max())
    size = norms * largest + loop * (u * most + tiny)
    # a'_i − a_i: the participations of a period, each of at most μ, and the differences of earlier errors.
    times = b * np.arange(min(k, -(-period // b)))
    apart = mu * (theta[:, None] ** times).sum(axis=1)
    error = (u * (2.0 * size + apart) + 2.0 * tiny) / (1.0 - u * reach)
    earlier = np.cumsum(powers, axis=1)[:, :-1]  # Σ_{j<t} θ^j for t = 1 … period − 1
    return math.sqrt(min(k, -(-n // period))) * float(np.linalg.norm((omega * error) @ earlier))


def _state_responses(inverse: StateSpace, period: int) -> tuple[Vector, Vector]:
    """Norm and sum of |·| of the filter from z to each θ_i S_i + y."""
    from scipy.signal import lfilter

    h = inverse.rows_scaled(1.0 / inverse.row_scale).apply(np.eye(1, inverse.rounds)[0])[:period]
    filters = [np.asarray(lfilter([1.0], [1.0, -theta], h)) for theta in inverse.decays]
    return np.linalg.norm(filters, axis=1), np.abs(filters).sum(axis=1)
