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
from fedmf.mechanisms.design_cache import remembered
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.registry import (
    DesignRequest,
    MechanismFamily,
    Parameter,
    SearchedParameter,
    Values,
    at_once,
    register,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

_MOST_BUFFERS = 5
_WORTH_A_BUFFER = 1e-3
# A buffer may fade so slowly that it is constant: 1 − θ ≥ 1/(10⁹n).
_SLOWEST = 1e9
# Decays a further buffer starts from, as fractions of log(separation), and its share of the weight.
_ADDED_AT = (0.15, 0.5, 0.9, 1.2)
_ADDED_WEIGHT = 0.03
# Other workloads than prefix sums take products of whole series.
_LARGEST_GENERAL = 131_072


class _BufferedLoss:
    def __init__(
        self, participation: Participation, queries: ToeplitzWorkload, order: float
    ) -> None:
        import torch

        from fedmf.mechanisms.optimise import summation

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

        from fedmf.mechanisms.optimise import (
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
        """w_t = Σ_{j ≤ t} h_j at the rounds of `summation`, from the poles of C⁻¹.

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
        """θ and ω."""
        u, v = np.split(parameters, 2)
        raised = np.exp(v)
        return 1.0 / (1.0 + np.exp(-u)), raised / (1.0 + raised.sum())


def _parameters(theta: Vector, omega: Vector) -> Vector:
    """(u, v) of θ and ω with Σω < 1."""
    return np.concatenate([np.log(theta / (1.0 - theta)), np.log(omega / (1.0 - omega.sum()))])


def blt(
    buffers: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> BufferedToeplitz:
    """Minimise the error over θ and ω with the exact sensitivity under (k, b), from several starts.

    m buffers start from geometric grids of decays and from the best m − 1 buffers with one more
    added in several places, since there are local minima.

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
    return _optima(buffers, participation, workload, objective, 0.0)


def blt_with_fewest_buffers(
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> BufferedToeplitz:
    """The BLT with as many buffers, at most 5, as lower the objective by 0.1 % each.

    >>> blt_with_fewest_buffers(Participation(20, 20, 1)).decays.size
    1
    """
    return _optima(_MOST_BUFFERS, participation, workload, objective, 2.0 * _WORTH_A_BUFFER)


def _optima(
    most: int,
    participation: Participation,
    workload: ToeplitzWorkload | None,
    objective: Objective,
    worth: float,
) -> BufferedToeplitz:
    """One buffer after the other, until the next is not worth it; the loss is the logarithm of a
    square.
    """
    import torch

    workload = prefix(participation.rounds) if workload is None else workload
    if workload.rounds != participation.rounds:
        raise ValueError(
            f"A (workload) must have n={participation.rounds} rounds; got {workload.rounds}. "
            "Use a workload of the same horizon."
        )
    goal = objective.for_toeplitz(workload)
    losses = [_BufferedLoss(participation, goal.queries(workload), order) for order in goal.orders]

    def value(parameters: Vector) -> float:
        return float(losses[-1](torch.tensor(parameters)))

    best = min((_descended(losses, start) for start in _grids(participation, 1)), key=value)
    for m in range(2, most + 1):
        starts = _grids(participation, m) + _extended(best, participation, _ADDED_WEIGHT, losses[0])
        more = min((_descended(losses, start) for start in starts), key=value)
        if worth and value(best) - value(more) < worth:
            break
        same = _extended(best, participation, 1e-9, losses[0])[0]
        best = min(more, same, key=value)
    theta, omega = losses[-1].pair(best)
    order = np.argsort(-theta, kind="stable")
    return BufferedToeplitz(theta[order], omega[order], participation.rounds)


def _grids(participation: Participation, buffers: int) -> list[Vector]:
    """Decays 1 − T^{−x} for even x, with weights in proportion to √(1 − θ) as in sums for
    j^{−1/2}.
    """
    starts = []
    for slowest in {max(participation.min_separation, 4.0), max(participation.rounds / 2.0, 4.0)}:
        rates = slowest ** -np.linspace(1.0, 0.2 if buffers > 1 else 1.0, buffers)
        weights = 0.5 * np.sqrt(rates) / max(np.sqrt(rates).sum(), 1.0)
        starts.append(_parameters(1.0 - rates, weights))
    return starts


def _extended(
    fewer: Vector, participation: Participation, weight: float, loss: _BufferedLoss
) -> list[Vector]:
    theta, omega = loss.pair(fewer)
    added = weight * (1.0 - omega.sum())
    share = 1.0 - weight
    places = 1.0 - max(participation.min_separation, 4.0) ** -np.array(_ADDED_AT)
    return [
        _parameters(np.append(theta, place), np.append(omega * share, added)) for place in places
    ]


def _descended(losses: list[_BufferedLoss], start: Vector) -> Vector:
    from fedmf.mechanisms.optimise import optimise

    m = start.size // 2
    slowest = np.log(_SLOWEST * losses[0].participation.rounds)
    low = np.repeat([-5.0, -25.0], m)
    high = np.repeat([slowest, 8.0], m)
    for loss in losses:
        start = optimise(loss, start, low, high, evaluations=500)
    return start


_BUFFERS = Parameter("buffers", "state vectors kept", integer=True, highest=10, letter="m")
_buffered = remembered(blt, version=6)
_few_buffered = remembered(blt_with_fewest_buffers, version=6)


def _few_buffers(request: DesignRequest, values: Values) -> float:
    return _few_buffered(*request.rated_target).decays.size


register(
    MechanismFamily(
        "blt",
        "the best buffered linear Toeplitz C",
        lambda ask, v: _buffered(v["buffers"], *ask.rated_target),
        (SearchedParameter(_BUFFERS, at_once(_few_buffers)),),
        largest=1_000_000,
        largest_compared=1_000_000,
        optimized=True,
    )
)
