"""Buffered linear Toeplitz (BLT) strategy matrices: sums of m exponentials, streamed with m vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.errors import RMSE, Objective, StrategyError
from fedmf.mechanisms.optimise import Descent, single_threaded
from fedmf.mechanisms.registry import BUFFERS, DesignRequest, Family, Free, Values, at_once, register
from fedmf.mechanisms.sensitivity import comb_sum, comb_sum_adjoint
from fedmf.mechanisms.series import frozen_vector, reciprocal
from fedmf.mechanisms.streaming import StateSpace
from fedmf.mechanisms.toeplitz import ScaledToeplitz
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation
from fedmf.typing import Array, Vector


@dataclass(frozen=True, eq=False)
class BufferedToeplitz(ScaledToeplitz, kind="buffered-toeplitz"):
    """C = LTT(c) with c_0 = 1 and c_j = Σ_i ω_i θ_i^{j−1}.

    As a power series c(x) = 1 + Σ_i ω_i x/(1 − θ_i x) = N(x)/D(x), two polynomials of degree m. So C⁻¹ is
    of the same kind: its first column is 1 − Σ_i ω̂_i θ̂_i^{j−1} (`inverse_pair`).

    Args:
        decays: θ, shape (m,), in (0, 1).
        weights: ω, shape (m,), positive.
        rounds: n, the horizon.

    Raises:
        ValueError: θ or ω is out of range or their lengths differ.

    References:
        Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), "Efficient and near-optimal noise generation
        for streaming differential privacy"; McMahan, Xu & Zhang (2024), arXiv:2408.08868.

    >>> BufferedToeplitz([0.5], [0.25], 4).strategy
    array([1.    , 0.25  , 0.125 , 0.0625])
    """

    decays: Vector
    weights: Vector
    rounds: int

    def __post_init__(self) -> None:
        decays = frozen_vector(self.decays, "theta", "buffer decays")
        weights = frozen_vector(self.weights, "omega", "buffer weights")
        if weights.size != decays.size:
            raise ValueError(
                f"omega (buffer weights) must have m={decays.size} entries like theta; got {weights.size}."
            )
        if not ((decays > 0) & (decays < 1)).all():
            at = int(np.flatnonzero(~((decays > 0) & (decays < 1)))[0])
            raise ValueError(f"theta (buffer decays) must be in (0, 1); got {decays[at]} at index {at}.")
        if not (weights > 0).all():
            at = int(np.flatnonzero(weights <= 0)[0])
            raise ValueError(f"omega (buffer weights) must be positive; got {weights[at]} at index {at}.")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"n (rounds) must be an integer of at least 1; got {self.rounds!r}.")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "weights", weights)

    def _strategy(self) -> Vector:
        powers = self.decays ** np.arange(self.rounds - 1)[:, None]
        return np.concatenate([[1.0], powers @ self.weights])

    def _correlation(self) -> Vector:
        return reciprocal(self.strategy, self.rounds)

    def polynomials(self) -> tuple[Vector, Vector]:
        """N and D with c(x) = N(x)/D(x), coefficients of x^0 … x^m.

        >>> BufferedToeplitz([0.5], [0.25], 4).polynomials()
        (array([ 1.  , -0.25]), array([ 1. , -0.5]))
        """
        denominator = _with_roots(self.decays)
        numerator = denominator.copy()
        for i, weight in enumerate(self.weights):
            numerator[1:] += weight * _with_roots(np.delete(self.decays, i))
        return numerator, denominator

    def inverse_pair(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """θ̂, ω̂ with [C⁻¹]_{j,0} = −Σ_i ω̂_i θ̂_i^{j−1}, j ≥ 1; θ̂_i are the roots of x^m·N(1/x).

        All θ are different here. Between two neighbouring θ lies one θ̂, the last lies below all θ and may be
        negative, and all ω̂ are positive.

        >>> theta, omega = BufferedToeplitz([0.5], [0.25], 4).inverse_pair()
        >>> theta.real, omega.real
        (array([0.25]), array([0.25]))
        """
        numerator, denominator = self.polynomials()
        roots = np.roots(numerator).astype(np.complex128)
        # D(x)/N(x) has the residue −ω̂_i at θ̂_i; with y = 1/x both become monic polynomials of y.
        slopes = np.polyval(np.polyder(numerator), roots)
        return roots, -np.polyval(denominator, roots) / slopes

    def recurrence(self) -> StateSpace:
        """C y = z solved forward with θ and ω themselves: keeps m sums of past outputs, draws no z again."""
        return StateSpace(self.decays, self.weights, self.scale)

    def leading(self, rounds: int) -> BufferedToeplitz:
        """The same θ and ω at the horizon T."""
        if not 1 <= rounds <= self.rounds:
            raise ValueError(f"T (leading rounds) must be between 1 and n={self.rounds}; got {rounds}.")
        return BufferedToeplitz(self.decays, self.weights, rounds)


def _with_roots(decays: Vector) -> Vector:
    """Π_i (1 − θ_i x), shape (m + 1,)."""
    product = np.ones(1)
    for decay in decays:
        product = np.append(product, 0.0) - decay * np.append(0.0, product)
    return product


_DESCENT = Descent(tolerance=1e-11, gradient=1e-7, evaluations=500, memory=20)
_MOST_BUFFERS, _WORTH_A_BUFFER = 5, 1e-3
# A buffer may fade so slowly that it is constant: 1 − θ ≥ 1/(10⁹n).
_SLOWEST = 1e9
# Decays a further buffer starts from, as fractions of log(separation), and its share of the weight.
_ADDED_AT, _ADDED_WEIGHT = (0.15, 0.5, 0.9, 1.2), 0.03


class BufferedObjective:
    """log(E·Q) as a function of 2m unconstrained parameters (u, v).

    θ_i = 1/(1 + e^{−u_i}) and ω_i = e^{v_i}/(1 + Σ_l e^{v_l}), so that Σω < 1 and c is positive and
    decreasing: the sensitivity is exactly √Q with Q = ‖Σ_{l<k} C_{:,lb}‖². E is ‖A C⁻¹‖_F² or a power mean of
    its rows (`StrategyError`).

    Args:
        participation: (n, k, b).
        workload: A of the same horizon; with column weights at most 4096 rounds.
        order: q ≥ 1 of the power mean.

    Raises:
        ValueError: the workload does not fit.
    """

    def __init__(self, participation: Participation, workload: ToeplitzWorkload, order: float = 1.0) -> None:
        if workload.rounds != participation.rounds:
            raise ValueError(
                f"A (workload) must have n={participation.rounds} rounds; got {workload.rounds}. "
                "Use a workload of the same horizon."
            )
        self.participation = participation
        self._error = StrategyError(workload, order)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (2m,)."""
        theta, omega = self.pair(parameters)
        n, k, b = (
            self.participation.rounds,
            self.participation.max_participations,
            self.participation.min_separation,
        )
        powers = _powers(theta, n - 1)
        c = np.concatenate([[1.0], powers @ omega])
        error, slope = self._error(c, _inverse(theta, omega, n))
        earliest = comb_sum(c, k, b)
        square = float(earliest @ earliest)
        slope = (slope / error + 2.0 * comb_sum_adjoint(earliest, k, b) / square)[1:]
        slope_omega = slope @ powers
        # d θ^{j−1}/du = (j−1)·θ^{j−1}·(1 − θ)
        slope_u = omega * (1.0 - theta) * ((slope * np.arange(n - 1)) @ powers)
        slope_v = omega * (slope_omega - float(omega @ slope_omega))
        return float(np.log(error) + np.log(square)), np.concatenate([slope_u, slope_v])

    def pair(self, parameters: Vector) -> tuple[Vector, Vector]:
        """θ and ω."""
        u, v = np.split(parameters, 2)
        raised = np.exp(v)
        return 1.0 / (1.0 + np.exp(-u)), raised / (1.0 + raised.sum())

    def parameters(self, theta: Vector, omega: Vector) -> Vector:
        """(u, v) of θ and ω with Σω < 1."""
        return np.concatenate([np.log(theta / (1.0 - theta)), np.log(omega / (1.0 - omega.sum()))])


def _powers(bases: Vector, count: int) -> Array:
    """θ_i^j for j < count, shape (count, m), twice as many at a time."""
    powers, known, step = np.ones((count, bases.size)), 1, bases
    while known < count:
        more = min(known, count - known)
        powers[known : known + more] = powers[:more] * step
        known, step = known + more, step * step
    return powers


def _inverse(theta: Vector, omega: Vector, rounds: int) -> Vector:
    """The first column of C⁻¹, which is 1 − Σ_i ω̂_i θ̂_i^{j−1}.

    C keeps s ← Θs + 1·z and adds ωᵀs; its inverse keeps s ← (Θ − 1ωᵀ)s + 1·y and takes ωᵀs away. So row j is
    −ωᵀ(Θ − 1ωᵀ)^{j−1}1 = −rᵀ(Θ − rrᵀ)^{j−1}r with r = √ω, and the eigenvalues θ̂ of a symmetric matrix are
    well conditioned where decays are close to each other as well; they lie in (−1, 1) as Σω < 1.
    """
    root = np.sqrt(omega)
    decays, vectors = np.linalg.eigh(np.diag(theta) - np.outer(root, root))
    return np.concatenate([[1.0], -_powers(decays, rounds - 1) @ (vectors.T @ root) ** 2])


def blt(
    buffers: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> BufferedToeplitz:
    """Minimise the error over θ and ω with the exact sensitivity under (k, b), by L-BFGS from several starts.

    m buffers start from geometric grids of decays and from the best m − 1 buffers with one more added in
    several places, since there are local minima.

    Args:
        buffers: m, 1 ≤ m ≤ 10.
        participation: (n, k, b).
        workload: A; prefix sums by default.
        objective: which error.

    Returns:
        C with decays in falling order; streamed with m stored vectors.

    Raises:
        ValueError: m is out of range or the workload does not fit.

    Guarantees:
        c is positive and decreasing, so the sensitivity is exact; the error does not grow with m.

    >>> C = blt(2, Participation(100, 2, 50))
    >>> C.decays.round(2), C.weights.round(2)
    (array([0.95, 0.43]), array([0.32, 0.19]))
    """
    if isinstance(buffers, bool) or not isinstance(buffers, int) or not 1 <= buffers <= 10:
        raise ValueError(f"m (buffers) must be an integer between 1 and 10; got {buffers!r}.")
    workload = _prefix(participation.rounds) if workload is None else workload
    means = _means(participation, workload, objective)
    return _value(means[-1], _optimum(participation, workload, objective, buffers))


def blt_with_fewest_buffers(
    participation: Participation, workload: ToeplitzWorkload | None = None, objective: Objective = RMSE
) -> BufferedToeplitz:
    """The BLT with as many buffers, at most 5, as lower the objective by 0.1 % each.

    >>> blt_with_fewest_buffers(Participation(20, 20, 1)).decays.size
    1
    """
    workload = _prefix(participation.rounds) if workload is None else workload
    error = _means(participation, workload, objective)[-1]
    parameters = _optimum(participation, workload, objective, 1)
    for m in range(2, _MOST_BUFFERS + 1):
        more = _optimum(participation, workload, objective, m)
        # The logarithm of a squared error.
        if error(parameters)[0] - error(more)[0] < 2.0 * _WORTH_A_BUFFER:
            break
        parameters = more
    return _value(error, parameters)


@lru_cache(maxsize=8)
def _prefix(rounds: int) -> ToeplitzWorkload:
    """One object per horizon: workloads are compared by identity."""
    return prefix(rounds)


def _means(
    participation: Participation, workload: ToeplitzWorkload, objective: Objective
) -> list[BufferedObjective]:
    """What is minimised, one after the other; the last one decides."""
    goal = objective.for_toeplitz(workload)
    queries = goal.queries(workload)
    return [BufferedObjective(participation, queries, order) for order in goal.orders]


@lru_cache(maxsize=64)
def _optimum(
    participation: Participation, workload: ToeplitzWorkload, objective: Objective, buffers: int
) -> Vector:
    fewer = _optimum(participation, workload, objective, buffers - 1) if buffers > 1 else None
    return _best(_means(participation, workload, objective), fewer, buffers)


def _value(objective: BufferedObjective, parameters: Vector) -> BufferedToeplitz:
    theta, omega = objective.pair(parameters)
    order = np.argsort(-theta, kind="stable")
    return BufferedToeplitz(theta[order], omega[order], objective.participation.rounds)


def _best(means: list[BufferedObjective], fewer: Vector | None, buffers: int) -> Vector:
    """The best of several descents; the best of one buffer fewer is among the candidates."""
    first, last = means[0], means[-1]
    starts = _grids(first, buffers) + ([] if fewer is None else _extended(first, fewer))
    candidates = [_minimize(first, start) for start in starts]
    for mean in means[1:]:
        candidates = [_minimize(mean, candidate) for candidate in candidates]
    if fewer is not None:
        candidates.append(_extended(first, fewer, weight=1e-9)[0])
    return min(candidates, key=lambda x: last(x)[0])


def _grids(objective: BufferedObjective, buffers: int) -> list[Vector]:
    """Decays 1 − T^{−x} for even x, with weights in proportion to √(1 − θ) as in sums for j^{−1/2}."""
    n, b = objective.participation.rounds, objective.participation.min_separation
    starts = []
    for slowest in {max(b, 4.0), max(n / 2.0, 4.0)}:
        rates = slowest ** -np.linspace(1.0, 0.2 if buffers > 1 else 1.0, buffers)
        weights = 0.5 * np.sqrt(rates) / max(np.sqrt(rates).sum(), 1.0)
        starts.append(objective.parameters(1.0 - rates, weights))
    return starts


def _extended(objective: BufferedObjective, fewer: Vector, weight: float = _ADDED_WEIGHT) -> list[Vector]:
    theta, omega = objective.pair(fewer)
    slowest = max(objective.participation.min_separation, 4.0)
    return [
        objective.parameters(
            np.append(theta, 1.0 - slowest**-place),
            np.append(omega * (1.0 - weight), weight * (1.0 - omega.sum())),
        )
        for place in _ADDED_AT
    ]


def _minimize(objective: BufferedObjective, start: Vector) -> Vector:
    m = start.size // 2
    slowest = np.log(_SLOWEST * objective.participation.rounds)
    return _DESCENT.least(objective, start, np.repeat([-5.0, -25.0], m), np.repeat([slowest, 8.0], m))


_buffered = lru_cache(maxsize=32)(remembered(single_threaded(blt), version=4))
_few_buffered = remembered(single_threaded(blt_with_fewest_buffers), version=4)


def _few_buffers(request: DesignRequest, values: Values) -> float:
    return _few_buffered(*request.rated_target).decays.size


register(
    Family(
        "blt",
        "the best buffered linear Toeplitz C",
        lambda ask, v: _buffered(v["buffers"], *ask.rated_target),
        (Free(BUFFERS, at_once(_few_buffers)),),
        largest=131_072,
        largest_compared=16_384,
        optimized=True,
    )
)
