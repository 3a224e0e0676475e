"""The optimal buffered linear Toeplitz (BLT) strategy matrix.

The loss is log(E·Q) as a function of (u, v) with θ_i = 1/(1 + e^{−u_i}) and ω_i = e^{v_i}/(1 + Σ_l
e^{v_l}), so that Σω < 1 and c is positive and decreasing: the sensitivity is exactly √Q with Q =
‖Σ_{l<k} C_{:,lb}‖². C⁻¹ is a sum of exponentials too, so that for prefix sums both factors are sums
over a few hundred rounds at any horizon.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.mechanisms.design_cache import disk_cached
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.registry import (
    DesignRequest,
    MechanismFamily,
    Parameter,
    SearchedParameter,
    Values,
    register,
    without_search,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

_MOST_BUFFERS = 5
_WORTH_A_BUFFER = 1e-3
# The slowest decay is 1 − θ = 1/(10⁹n), where a buffer is practically constant.
_SLOWEST = 1e9
# Starting decays of a further buffer, as fractions of log(separation), and its share of the weight.
_ADDED_AT = (0.15, 0.5, 0.9, 1.2)
_ADDED_WEIGHT = 0.03
# Other workloads than prefix sums take products of whole series.
_LARGEST_GENERAL = 131_072
# Relative to the loss. 1e-15 takes a quarter longer, for nothing.
_TOLERANCE = 1e-11


class _BufferedLoss:
    """The loss as a function of (u, v), with sums over the rounds of `summation` where possible."""

    def __init__(
        self, participation: Participation, queries: ToeplitzWorkload, order: float
    ) -> None:
        import torch

        from fedmf.mechanisms.optimize import summation

        self.participation = participation
        self._queries = queries
        self._order = order
        n = participation.rounds
        later = queries.counted
        self._t, count = summation(n)
        at = self._t.numpy().astype(np.int64)
        self._counted = count * torch.tensor(later[at])
        even = abs(float(self._counted.sum()) - later.sum()) <= 1e-7 * later.sum()
        prefix_sums = bool((queries.coefficients == 1.0).all()) and queries.column_weights is None
        self._in_closed_form = prefix_sums and order == 1.0 and even
        if not self._in_closed_form and n > _LARGEST_GENERAL:
            raise ValueError(
                f"n (rounds) must be at most {_LARGEST_GENERAL} for blt and this workload; got {n}."
                " Use prefix sums, bisr or banded-toeplitz."
            )

    def __call__(self, parameters: Any) -> Any:
        import torch

        from fedmf.mechanisms.optimize import (
            log_earliest_exponentials,
            log_error,
            series_reciprocal,
        )

        u, v = parameters.chunk(2)
        theta = torch.sigmoid(u)
        omega = torch.exp(v) / (1.0 + torch.exp(v).sum())
        rho = omega / theta
        square = log_earliest_exponentials(1.0 - rho.sum(), rho, theta, self.participation)
        if self._in_closed_form:
            w = self._running_sums(theta, omega)
            return square + torch.log((self._counted * w * w).sum())
        n = self.participation.rounds
        powers = theta[:, None] ** torch.arange(n - 1, dtype=torch.float64)
        c = torch.cat([torch.ones(1, dtype=torch.float64), omega @ powers])
        return square + log_error(series_reciprocal(c, n), self._queries, self._order)

    def _running_sums(self, theta: Any, omega: Any) -> Any:
        """The sums w_t = Σ_{j ≤ t} h_j at the rounds of `summation`, from the poles of C⁻¹.

        c(1/y) = g(y) = 1 + Σ_i ω_i/(y − θ_i), so h_j = Σ_i θ̂_i^{j−1}/g′(θ̂_i) with g(θ̂_i) = 0.
        The θ̂ are the eigenvalues of diag(θ) − √ω√ωᵀ; a Newton step on g gives them their
        derivatives.
        """
        import torch

        root = torch.sqrt(omega.detach())
        poles = torch.linalg.eigvalsh(torch.diag(theta.detach()) - torch.outer(root, root))
        away = poles[:, None] - theta
        slope = -(omega.detach() / away.detach() ** 2).sum(1)
        poles = poles - (1.0 + (omega / away).sum(1)) / slope
        residues = -1.0 / (omega / (poles[:, None] - theta) ** 2).sum(1)
        slow = poles > 0.5
        logs = torch.log(torch.where(slow, poles, 0.5))
        grown = torch.where(
            slow[:, None],
            torch.expm1(logs[:, None] * self._t),
            torch.where(slow, 0.25, poles)[:, None] ** self._t - 1.0,
        )
        return 1.0 + (residues / (poles - 1.0)) @ grown

    def pair(self, parameters: Vector) -> tuple[Vector, Vector]:
        """The decays θ and weights ω of parameters (u, v)."""
        u, v = np.split(parameters, 2)
        powers = np.exp(v)
        return 1.0 / (1.0 + np.exp(-u)), powers / (1.0 + powers.sum())


def _parameters(theta: Vector, omega: Vector) -> Vector:
    """The parameters (u, v) of θ and ω with Σω < 1."""
    return np.concatenate([np.log(theta / (1.0 - theta)), np.log(omega / (1.0 - omega.sum()))])


def blt(
    buffers: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> BufferedToeplitz:
    """Minimize the error over θ and ω with the exact sensitivity under (k, b), from several starts.

    m buffers start from geometric grids of decays and from the best m − 1 buffers with one more
    added in several places, since there are local minima.

    Args:
        buffers: m, 1 ≤ m ≤ 10.
        participation: (n, k, b).
        workload: A; prefix sums by default.
        objective: the error.

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
    return _optimum(buffers, participation, workload, objective, 0.0)


def blt_with_fewest_buffers(
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> BufferedToeplitz:
    """The best BLT with at most 5 buffers, each of which lowers the objective by 0.1 % or more.

    >>> blt_with_fewest_buffers(Participation(20, 20, 1)).decays.size
    1
    """
    return _optimum(_MOST_BUFFERS, participation, workload, objective, 2.0 * _WORTH_A_BUFFER)


def _optimum(
    most: int,
    participation: Participation,
    workload: ToeplitzWorkload | None,
    objective: Objective,
    least_gain: float,
) -> BufferedToeplitz:
    """The best BLT, with one buffer added after the other.

    Args:
        most: the largest number of buffers.
        participation: (n, k, b).
        workload: A; None for prefix sums.
        objective: the error.
        least_gain: the search ends at a buffer that lowers the loss, which is the logarithm of a
            squared error, by less than this; 0 for never.
    """
    import torch

    if workload is None:
        workload = prefix(participation.rounds)
    if workload.rounds != participation.rounds:
        raise ValueError(
            f"A (workload) must have n={participation.rounds} rounds; got {workload.rounds}. "
            "Use a workload of the same horizon."
        )
    goal = objective.for_toeplitz(workload)
    losses = [_BufferedLoss(participation, goal.queries(workload), order) for order in goal.orders]

    def value(parameters: Vector) -> float:
        return float(losses[-1](torch.tensor(parameters)))

    def best_from(starts: list[Vector]) -> Vector:
        return min([_descended(losses, start) for start in starts], key=value)

    best = best_from(_grids(participation, 1))
    for m in range(2, most + 1):
        starts = _grids(participation, m) + _extended(best, participation, _ADDED_WEIGHT, losses[0])
        more = best_from(starts)
        if least_gain and value(best) - value(more) < least_gain:
            break
        # The same C with one more buffer, of negligible weight: the error must not grow with m.
        same = _extended(best, participation, 1e-9, losses[0])[0]
        best = min(more, same, key=value)
    theta, omega = losses[-1].pair(best)
    order = np.argsort(-theta, kind="stable")
    return BufferedToeplitz(theta[order], omega[order], participation.rounds)


def _grids(participation: Participation, buffers: int) -> list[Vector]:
    """Starts with decays 1 − T^{−x} for even x, and weights in proportion to √(1 − θ).

    Sums of exponentials for j^{−1/2} have such weights.
    """
    exponents = np.linspace(1.0, 0.2, buffers)
    starts: list[Vector] = []
    for slowest in {max(participation.min_separation, 4.0), max(participation.rounds / 2.0, 4.0)}:
        rates = slowest**-exponents
        weights = 0.5 * np.sqrt(rates) / max(np.sqrt(rates).sum(), 1.0)
        starts.append(_parameters(1.0 - rates, weights))
    return starts


def _extended(
    fewer: Vector, participation: Participation, weight: float, loss: _BufferedLoss
) -> list[Vector]:
    """Starts with one more buffer, which has this weight, in several places."""
    theta, omega = loss.pair(fewer)
    weights = np.append(omega * (1.0 - weight), weight * (1.0 - omega.sum()))
    places = 1.0 - max(participation.min_separation, 4.0) ** -np.array(_ADDED_AT)
    return [_parameters(np.append(theta, place), weights) for place in places]


def _descended(losses: list[_BufferedLoss], start: Vector) -> Vector:
    """The local minimum of the last loss that is reached from a start by one loss after another."""
    from fedmf.mechanisms.optimize import optimize

    m = start.size // 2
    slowest = np.log(_SLOWEST * losses[0].participation.rounds)
    low = np.repeat([-5.0, -25.0], m)
    high = np.repeat([slowest, 8.0], m)
    for loss in losses:
        start = optimize(loss, start, low, high, tolerance=_TOLERANCE, evaluations=500)
    return start


_BUFFERS = Parameter("buffers", "state vectors kept", integer=True, highest=10, letter="m")
_buffered = disk_cached(blt, version=7)
_few_buffered = disk_cached(blt_with_fewest_buffers, version=7)


def _few_buffers(request: DesignRequest, values: Values) -> float:
    return _few_buffered(*request.rated_target).decays.size


register(
    MechanismFamily(
        "blt",
        "the best buffered linear Toeplitz C",
        lambda request, values: _buffered(values["buffers"], *request.rated_target),
        (SearchedParameter(_BUFFERS, without_search(_few_buffers)),),
        max_rounds=1_000_000,
        max_rounds_compared=1_000_000,
        optimized=True,
    )
)
