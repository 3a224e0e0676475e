"""The optimal p-banded Toeplitz strategy matrix: plain, with normalized columns, or tapered.

The loss is log(‖S c‖²·Σ_t S_t w_t²) with w = a/c as power series and S_t = Σ_{i ≥ t} r_i². S c, the
sum of the columns of the earliest pattern, has the sensitivity as its norm for p ≤ b and for
non-negative non-increasing c; the other factor is ‖A C⁻¹‖_F² for A = diag(r)·LTT(a).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization, normalized
from fedmf.matrices.series import multiply, reciprocal
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import strategy_power
from fedmf.mechanisms.design_cache import disk_cached
from fedmf.mechanisms.objective import LARGEST_RATED, RMSE, Objective
from fedmf.mechanisms.registry import (
    BANDS,
    STAMPS,
    Built,
    DesignRequest,
    Error,
    MechanismFamily,
    MechanismVariant,
    OptionalParameter,
    Parameter,
    SearchedParameter,
    Values,
    candidate_bands,
    register,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

_START_EXPONENTS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
# Beyond this horizon the sum is closed in form once w has settled: once its last p terms are this
# close to its limit, relative to its largest term.
_SHORT = 4096
_SETTLED = 1e-12
# Beyond p = b the optimizer takes longer; wider bands than this are never searched.
_WIDEST_OPTIMIZED = 256


class ToeplitzLoss:
    """The loss as a function of c.

    The sum over t is closed by the limit of w once w has settled (McKenna 2024, Appendix I).
    """

    def __init__(
        self, bands: int, participation: Participation, queries: ToeplitzWorkload, order: float
    ) -> None:
        self._participation = participation
        self._queries = queries
        self._order = order
        a = queries.coefficients
        n = queries.rounds
        self._limit = float(a[-1])
        away = np.flatnonzero(np.abs(a - self._limit) > 1e-15 * np.abs(a).max())
        self.terms = n
        if order == 1.0 and queries.column_weights is None and n > _SHORT:
            unsettled = bands
            if away.size:
                unsettled = away[-1] + 1 + bands
            self.terms = min(n, max(1024, 4 * bands, 2 * unsettled))

    def __call__(self, c: Any) -> Any:
        """The loss of a tensor c, shape (p,)."""
        import torch

        from fedmf.mechanisms.optimize import (
            log_earliest,
            log_error,
            series_product,
            series_reciprocal,
        )

        h = series_reciprocal(c, self.terms)
        square = log_earliest(c, self._participation)
        if self.terms == self._queries.rounds:
            return square + log_error(h, self._queries, self._order)
        w = series_product(torch.tensor(self._queries.coefficients[: self.terms]), h, self.terms)
        later = self._queries.counted
        rest = (self._limit / c.sum()) ** 2 * float(later[self.terms :].sum())
        return square + torch.log((torch.tensor(later[: self.terms]) * w * w).sum() + rest)

    def settles(self, c: Vector) -> bool:
        """Whether w has settled for this c; if not, twice as many terms are computed later."""
        if self.terms == self._queries.rounds:
            return True
        w = multiply(
            self._queries.coefficients[: self.terms], reciprocal(c, self.terms), self.terms
        )
        away = np.abs(w[-c.size :] - self._limit / c.sum()).max()
        if away <= _SETTLED * np.abs(w).max():
            return True
        self.terms = min(2 * self.terms, self._queries.rounds)
        return False


def banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
    start: Vector | None = None,
) -> Toeplitz:
    """Minimize the objective over C = LTT(c), c ∈ R^p, c_0 = 1.

    For p ≤ b all c compete, and columns are orthogonal. For p > b only non-negative
    non-increasing c do, for which the sensitivity in the loss is exact. The time hardly depends on
    n once n is many times p: the settled part of the error is summed in closed form. Learning rates
    count for p ≤ b and n ≤ 4096.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds; prefix sums by default.
        objective: the error. The largest is the last one where A has no weights; otherwise it is
            the limit of power means.
        start: c to start from, shape (p,), c_0 > 0, with an inverse that does not overflow; by
            default the best of several banded powers of the workload.

    Returns:
        C with a unit diagonal.

    Raises:
        ValueError: p is out of range, the start's inverse overflows, or the workload does not fit.

    Guarantees:
        No worse than the start.

    References:
        McKenna (2024), Section 3.2 and Appendices A, D.3 and I.

    >>> banded_toeplitz(2, Participation(8, 1, 8)).coefficients.round(3)
    array([1.   , 0.524])
    """
    n = participation.rounds
    if workload is None:
        workload = prefix(n)
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds; got {workload.rounds}.")
    rated = workload.column_weights is not None
    plain = replace(workload, column_weights=None)
    goal = objective.for_toeplitz(plain)
    queries = goal.queries(plain)
    overlapping = bands > participation.min_separation
    starts = [strategy_power(queries, x, bands).coefficients for x in _START_EXPONENTS]
    if overlapping:
        starts = [np.maximum(np.minimum.accumulate(c), 0.0) for c in starts]
    if start is not None:
        starts = [start / start[0]]
    if bands == 1:
        return Toeplitz(starts[0], n)
    c = _best(starts, ToeplitzLoss(bands, participation, queries, goal.orders[0]), n)
    for order in goal.orders:
        c = _minimized(c, ToeplitzLoss(bands, participation, queries, order), overlapping)
    if rated and not overlapping and n <= LARGEST_RATED:
        queries = objective.queries(workload)
        for order in objective.orders:
            c = _minimized(c, ToeplitzLoss(bands, participation, queries, order), False)
    return Toeplitz(c, n)


def _best(starts: list[Vector], loss: ToeplitzLoss, rounds: int) -> Vector:
    """The start of least loss."""
    import torch

    values = [float(loss(torch.tensor(c))) for c in starts]
    if not min(values) < np.inf:
        raise ValueError(
            f"start (coefficients) must have a finite inverse over n={rounds} rounds; "
            "got overflow. Use smaller coefficients."
        )
    return starts[int(np.argmin(values))]


def _minimized(c: Vector, loss: ToeplitzLoss, overlapping: bool) -> Vector:
    """The best c with the shape of the start.

    The coordinates are c_1 … c_{p−1}, or, for overlapping columns, the steps δ ≥ 0 of the
    non-increasing c_j = Σ_{l ≥ j} δ_l. Their scale does not matter.
    """
    import torch

    from fedmf.mechanisms.optimize import optimize

    one = torch.ones(1, dtype=torch.float64)
    while True:
        if overlapping:
            start = np.append(c[:-1] - c[1:], c[-1])
            steps = optimize(lambda x: loss(x.flip(0).cumsum(0).flip(0)), start, lowest=0.0)
            c = np.cumsum(steps[::-1])[::-1]
            c = c / c[0]
        else:
            c = np.append(1.0, optimize(lambda tail: loss(torch.cat([one, tail])), c[1:]))
        if loss.settles(c):
            return c


def normalized_banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Factorization:
    """Minimize the objective over LTT(c)·D⁻¹ with D the column norms.

    Normalizing the optimum of `banded_toeplitz` is near the best for large n/p and up to 0.5 % off
    where the last p columns matter. The joint optimization starts there. It is done for p ≤ b and n
    ≤ 4096; otherwise the start is returned.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds; prefix sums by default.
        objective: the error.

    Raises:
        ValueError: p is out of range.

    Guarantees:
        For p ≤ b never worse than the normalized optimum of `banded_toeplitz`.

    References:
        McKenna (2024), Appendix K.

    >>> normalized_banded_toeplitz(2, Participation(8, 1, 8)).gram_diagonal(0).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    n = participation.rounds
    b = participation.min_separation
    if workload is None:
        workload = prefix(n)
    queries = objective.queries(workload)
    start = banded_toeplitz(bands, participation, workload=workload, objective=objective)
    if bands == 1 or bands > b or n > LARGEST_RATED:
        return normalized(start)

    import torch

    from fedmf.mechanisms.optimize import log_error, optimize, padded, series_reciprocal

    def loss(tail: Any, order: float) -> Any:
        c = torch.cat([torch.ones(1, dtype=torch.float64), tail])
        norms = torch.sqrt(torch.cumsum(padded(c, n) ** 2, 0).flip(0))
        return log_error(series_reciprocal(c, n), queries, order, norms)

    tail = start.coefficients[1:]
    for order in objective.orders:
        tail = optimize(partial(loss, order=order), tail)
    return normalized(Toeplitz(np.append(1.0, tail), n))


def tapered(C: Toeplitz, lower: int, upper: int) -> Toeplitz:
    """C with c_i·(b̂ − i)/(b̂ − b₀) for b₀ ≤ i < b̂ and 0 from b̂ on, for unknown separations.

    Args:
        C: optimized for the upper separation.
        lower: b₀, the smallest separation expected, 0 ≤ b₀ < b̂.
        upper: b̂, the largest.

    Raises:
        ValueError: b₀ and b̂ are out of order.

    References:
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism", Appendix H.

    >>> tapered(Toeplitz([1.0, 0.5, 0.5, 0.5], 4), 1, 3).coefficients
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    if not 0 <= lower < upper:
        raise ValueError(
            f"b_0 (lower separation) must be at least 0 and below b_hat; got {lower} and {upper}."
            " Swap them?"
        )
    i = np.arange(C.coefficients.size)
    return Toeplitz(C.coefficients * np.clip((upper - i) / (upper - lower), 0.0, 1.0), C.rounds)


_TAPER = Parameter(
    "taper", "separation from which coefficients fall to 0", integer=True, lowest=0, letter="b_0"
)
_optimized = disk_cached(banded_toeplitz, version=4)
_normalized = disk_cached(normalized_banded_toeplitz, version=4)


def _optimal_bands(request: DesignRequest, values: Values, error: Error) -> float:
    """The bands beyond which the error falls by less than 0.1 %.

    With kb ≥ n nothing was gained beyond p = b in any setting tried: only users with few
    participations leave room for wider bands.
    """
    contract = request.participation
    best = request.separation
    if contract.max_participations * contract.min_separation >= contract.rounds:
        return best
    least = error(best)
    for p in candidate_bands(request):
        if not best < p <= max(contract.min_separation, _WIDEST_OPTIMIZED):
            continue
        previous = least
        least = min(least, error(p))
        if least > 0.999 * previous:
            break
        best = p
    return best


def _tapered(
    variant: MechanismVariant, request: DesignRequest, lower: int, others: Values
) -> Built:
    """The optimal banded Toeplitz C for separation b, tapered to 0 from coefficient b₀ to p."""
    values, _ = variant.family.plain_variant.build(request, others)
    p = int(values["bands"])
    replace(_TAPER, highest=p - 1).checked(lower, variant.name, request.rounds)
    C = tapered(_optimized(p, *request.target), lower, p)
    return values, variant.with_columns(C)


register(
    MechanismFamily(
        "banded-toeplitz",
        "the best Toeplitz C with p bands",
        lambda request, values: _optimized(values["bands"], *request.target),
        (SearchedParameter(BANDS, _optimal_bands),),
        optional=(STAMPS, OptionalParameter(_TAPER, _tapered)),
        max_rounds_compared=1_000_000,
        make_normalized=lambda request, values: _normalized(values["bands"], *request.target),
        optimized=True,
        aliases=("bandmf", "band-mf"),
    )
)
