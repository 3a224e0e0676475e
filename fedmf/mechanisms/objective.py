"""The error of a matrix mechanism.

`Objective` names the error that designs minimize, `errors` computes it for a given C and
sensitivity, and `QuickError` computes it fast in a search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import Sensitivity, comb_sum, monotone_envelope
from fedmf.matrices.series import multiply, padded
from fedmf.mechanisms.power_series import truncated_coefs
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.quick_sensitivity import quick_upper_bound
from fedmf.mechanisms.workload import ToeplitzWorkload, weighted
from fedmf.participation import Participation

#: The largest n with learning rates, where an error takes all entries of A C⁻¹ and a quarter of a
#: second.
LARGEST_RATED: Final = 4096
# Up to this many products per round, lags are summed one by one.
_FEW_LAGS = 4
ObjectiveKind = Literal["rmse", "max", "last", "weights"]
_LABELS: Final = {"rmse": "RMSE", "max": "MaxSE", "last": "last SE", "weights": "weighted RMSE"}
# The largest variance is approached by power means of these orders, each search started from the
# last.
_ORDERS: Final = tuple(8.0 * 4.0**stage for stage in range(9))
_FORMS: Final = "rmse, max, last or weights:w1,w2,… (m of them, each for n/m rounds)"
_LEAST_COUNTED: Final = 1e-8


@dataclass(frozen=True)
class Objective:
    """The error that parameters and coefficients minimize, times the sensitivity.

    With v_t = ‖(A C⁻¹)_{t,:}‖² the squared error is the mean of v ("rmse"), its largest entry
    ("max"), its last ("last"), or Σ_t w_t v_t/Σ_t w_t ("weights").

    Args:
        kind: the name of the error.
        weights: w, m ≤ n non-negative numbers, not all zero; query t of n counts w_⌊tm/n⌋, so that
            n of them give every query its own. Only for "weights".

    Raises:
        ValueError: an unknown kind, or weights that do not fit it.

    >>> Objective.parse("weights:1,3").squared_error(np.array([1.0, 1.0, 2.0, 2.0]))
    1.75
    """

    kind: ObjectiveKind = "rmse"
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(ObjectiveKind):
            raise ValueError(f"objective must be {_FORMS}; got {self.kind!r}.")
        w = tuple(float(value) for value in self.weights)
        object.__setattr__(self, "weights", w)
        if bool(w) != (self.kind == "weights"):
            raise ValueError(
                f"w (weights) must be given for objective weights, and no other; got {len(w)}."
            )
        valid = all(0 <= value < math.inf for value in w) and any(w)
        if w and not valid:
            raise ValueError(
                f"w (weights) must be finite, non-negative and not all zero; got {min(w)}."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an objective of a command line or a configuration.

        Raises:
            ValueError: the text does not describe an objective.

        >>> Objective.parse("max").label
        'MaxSE'
        """
        kind, colon, values = text.partition(":")
        if not colon:
            return cls(kind)  # type: ignore[arg-type]
        try:
            weights = tuple(float(value) for value in values.split(","))
        except ValueError:
            raise ValueError(
                f"objective must be {_FORMS}; got {text!r}. Separate them by commas."
            ) from None
        return cls(kind, weights)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The objective as `parse` reads it."""
        if not self.weights:
            return self.kind
        return f"{self.kind}:{','.join(repr(w) for w in self.weights)}"

    @property
    def label(self) -> str:
        """The name of its error."""
        return _LABELS[self.kind]

    @property
    def orders(self) -> tuple[float, ...]:
        """Power means to minimize in turn: the plain mean, or nine that tend to the largest."""
        if self.kind == "max":
            return _ORDERS
        return (1.0,)

    def spread(self, rounds: int) -> Vector:
        """The weight of each query, mean 1, shape (n,).

        Raises:
            ValueError: there are more weights than queries, or all weights are 0.

        >>> LAST.spread(3)
        array([0., 0., 3.])
        """
        w = np.ones(rounds)
        if self.kind == "last":
            w[:-1] = 0.0
        elif self.weights:
            if len(self.weights) > rounds:
                raise ValueError(
                    f"w (weights of the objective) must be at most n={rounds}; got"
                    f" {len(self.weights)}."
                )
            w = np.array(self.weights)[np.arange(rounds) * len(self.weights) // rounds]
        return np.asarray(w / w.mean(), dtype=np.float64)

    def queries(self, workload: ToeplitzWorkload) -> ToeplitzWorkload:
        """The workload whose mean squared error is this objective.

        For "max" it is the workload itself, for power means of its squared errors.
        """
        if self.kind in ("rmse", "max"):
            return workload
        return weighted(workload, rows=np.sqrt(self.spread(workload.rounds)))

    def for_toeplitz(self, workload: ToeplitzWorkload) -> Objective:
        """An equal objective for C = LTT(c), where the last query may have the largest error.

        Without weights in A, A C⁻¹ = LTT(w), and v_t = Σ_{s ≤ t} w_s² grows with t.
        """
        plain = workload.row_weights is None and workload.column_weights is None
        if self.kind == "max" and plain:
            return LAST
        return self

    def check_counts_all(self, name: str) -> None:
        """Reject an objective that leaves queries out, for a C with free entries.

        The noise in those queries could grow without bound, so that there is no minimum.

        Args:
            name: the name of the mechanism, for the message.

        Raises:
            ValueError: the objective leaves queries out.
        """
        least = min(self.weights, default=1.0) / max(self.weights, default=1.0)
        if self.kind == "last" or least < _LEAST_COUNTED:
            raise ValueError(
                "objective must count every query (weights of at least 1e-8 of the largest) for"
                f" {name}; got {self.kind}. There is no minimum: queries that do not count would be"
                " buried in noise. Use banded-toeplitz, banded-inverse or blt."
            )

    def squared_error(self, variances: Vector) -> float:
        """The squared error of query variances v, the row weights of A included.

        >>> MAX.squared_error(np.array([1.0, 3.0, 2.0]))
        3.0
        """
        if self.kind == "max":
            return float(variances.max())
        if self.kind == "last":
            return float(variances[-1])
        return float(self.spread(variances.size) @ variances / variances.size)


RMSE: Final = Objective()
MAX: Final = Objective("max")
LAST: Final = Objective("last")


@dataclass(frozen=True)
class Errors:
    """Errors of the released queries per coordinate, for clip norm ζ = 1.

    Args:
        rmse: (1/√n)·‖A C⁻¹‖_F · noise standard deviation.
        max_se: max_t ‖(A C⁻¹)_{t,:}‖₂ · noise standard deviation.
        objective: the error of the `Objective`, which may be one of the two.
    """

    rmse: float
    max_se: float
    objective: float


def query_variances(
    factorization: Factorization, workload: ToeplitzWorkload
) -> NDArray[np.float64]:
    """The variance ‖(A C⁻¹)_{t,:}‖² of every query for unit noise z, shape (n,), with all weights.

    Args:
        factorization: C.
        workload: A = diag(r)·LTT(a)·diag(η), with at least as many rounds as C; its leading block
            is used.

    Raises:
        ValueError: the workload is shorter than the horizon, or it has column weights, C is stamped
            and n exceeds 4096.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.mechanisms.workload import prefix
    >>> query_variances(identity(3), prefix(3))
    array([1., 2., 3.])
    """
    n = factorization.rounds
    if workload.rounds < n:
        raise ValueError(f"A (workload) must have at least n={n} rounds; got {workload.rounds}.")
    queries = workload.leading(n)
    if queries.column_weights is None:
        variances = toeplitz_query_variances(factorization, queries.coefficients)
    else:
        # LTT(a)·diag(η)·C⁻¹ = LTT(a)·(C·diag(η)⁻¹)⁻¹: learning rates act like a column scale.
        scaled = factorization.columns_divided_by(queries.column_weights)
        variances = toeplitz_query_variances(scaled, queries.coefficients)
    if queries.row_weights is None:
        return variances
    return queries.row_weights**2 * variances


def errors(
    factorization: Factorization,
    workload: ToeplitzWorkload,
    sensitivity: Sensitivity,
    noise_multiplier: float = 1.0,
    objective: Objective = RMSE,
) -> Errors:
    """RMSE, MaxSE and the objective with the noise standard deviation sens(C)·σ.

    Args:
        factorization: C.
        workload: A.
        sensitivity: of C under the participation in force, exact or a bound.
        noise_multiplier: σ > 0; 1 leaves the budget out. Multiply by 2 for replace-one adjacency.
        objective: a further error.

    Raises:
        ValueError: σ is not positive and finite, or the workload is shorter than the horizon.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.matrices.sensitivity import sensitivity_of
    >>> from fedmf.participation import Participation
    >>> from fedmf.mechanisms.workload import prefix
    >>> errors(identity(4), prefix(4), sensitivity_of(identity(4), Participation(4, 2, 2)))
    Errors(rmse=2.2360679774997..., max_se=2.8284271247461..., objective=2.2360679774997...)
    """
    if not 0 < noise_multiplier < float("inf"):
        raise ValueError(
            f"sigma (noise_multiplier) must be positive and finite; got {noise_multiplier}."
        )
    variances = query_variances(factorization, workload)
    deviation = sensitivity.value * noise_multiplier
    return Errors(
        rmse=deviation * float(variances.mean()) ** 0.5,
        max_se=deviation * float(variances.max()) ** 0.5,
        objective=deviation * objective.squared_error(variances) ** 0.5,
    )


class QuickError:
    """The objective times a cheap bound on the sensitivity, as a function of C, for searches.

    For Toeplitz C without learning rates in A a mean is Σ_t S_t w_t² with w = a·h, S_t = Σ_{i ≥ t}
    r_i² (the weights of the objective included; where A has no weights, the largest error is the
    last), and the norm is taken of the sum of the earliest columns of the monotone envelope ĉ of c
    (of c where it settles within b). Where a is constant and h has settled at 0 after m terms, w is
    constant; where c has, its sums are over m terms. So the time depends on the bands rather than
    on n. Any other C is judged by `query_variances` and `quick_upper_bound`, which give the same
    number to about 1e-12.

    Args:
        participation: (n, k, b).
        workload: A of n rounds.
        objective: the error.

    >>> from fedmf.mechanisms.closed_forms import bisr
    >>> from fedmf.mechanisms.workload import prefix
    >>> round(QuickError(Participation(10**6, 10, 10**5), prefix(10**6))(bisr(64, 10**6)), 3)
    254.124
    """

    def __init__(
        self, participation: Participation, workload: ToeplitzWorkload, objective: Objective = RMSE
    ) -> None:
        n = participation.rounds
        k = participation.max_participations
        b = participation.min_separation
        self._participation = participation
        self._workload = workload
        self._objective = objective
        toeplitz = objective.for_toeplitz(workload)
        self._settles = workload.column_weights is None and toeplitz.kind != "max"
        self._counted = toeplitz.queries(workload).counted
        self._rest = np.append(np.cumsum(self._counted[::-1])[::-1], 0.0)
        self._reached = np.minimum(k, -(-(n - np.arange(n)) // b)).astype(np.float64)

    def __call__(self, strategy: Factorization) -> float:
        """The error; σ and the budget left out.

        Raises:
            NotRepresentable: C or its inverse overflows.
        """
        pair = None
        if self._settles:
            pair = truncated_coefs(strategy)
        if pair is not None:
            strategy_coefs, noising_coefs = pair
            with np.errstate(over="ignore", invalid="ignore"):
                error = self._variance(noising_coefs) * self._squared_bound(strategy_coefs)
            if not error < math.inf:
                return math.inf
            return math.sqrt(error / self._participation.rounds)
        variances = query_variances(strategy, self._workload)
        bound = quick_upper_bound(strategy, self._participation)
        return math.sqrt(self._objective.squared_error(variances)) * bound

    def _variance(self, h: Vector) -> float:
        """The sum of variances Σ_t S_t w_t² for C⁻¹ = LTT(h)."""
        if not (self._workload.coefficients == 1.0).all():
            w = multiply(self._workload.coefficients, h, self._participation.rounds)
            return float((self._counted * w) @ w)
        w = np.cumsum(h)
        settled = float(w[-1] * w[-1] * self._rest[w.size])
        return float((self._counted[: w.size] * w) @ w) + settled

    def _squared_bound(self, c: Vector) -> float:
        """The squared bound on the sensitivity, Σ_h (2 − [h = 0])·Σ_l (N_l − h)⁺ ĉ_l ĉ_{l+hb}."""
        contract = self._participation
        n = contract.rounds
        k = contract.max_participations
        b = contract.min_separation
        if k == 1 or c.size <= b:
            return float((self._reached[: c.size] * c) @ c)
        envelope = monotone_envelope(np.abs(c))
        lags = min(k, -(-c.size // b))
        if lags * c.size > _FEW_LAGS * n:
            total = comb_sum(padded(envelope, n), k, b)
            return float(total @ total)
        square = 0.0
        for lag in range(lags):
            length = c.size - lag * b
            counts = np.maximum(self._reached[:length] - lag, 0.0)
            if lag > 0:
                counts *= 2.0  # both orders of the two participations
            square += float((counts * envelope[:length]) @ envelope[lag * b :])
        return square
