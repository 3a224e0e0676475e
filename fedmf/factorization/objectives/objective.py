"""Which error of the released queries a mechanism is made for: mean, largest, last, or any weighted one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import numpy as np

from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload, weighted

ObjectiveKind = Literal["rmse", "max", "last", "weights"]
_LABELS: Final = {"rmse": "RMSE", "max": "MaxSE", "last": "last SE", "weights": "weighted RMSE"}
# The largest variance is approached by power means of these orders, each search started from the last.
_ORDERS: Final = (8.0, 64.0, 512.0, 4096.0, 32768.0)
_FORMS: Final = "rmse, max, last or weights:w1,w2,… (m of them, each for n/m rounds)"
_LEAST_COUNTED: Final = 1e-8


@dataclass(frozen=True)
class Objective:
    """The error that parameters and coefficients minimise, times the sensitivity.

    With v_t = ‖(A C⁻¹)_{t,:}‖² the squared error is the mean of v ("rmse"), its largest entry ("max"), its
    last ("last"), or Σ_t w_t v_t/Σ_t w_t ("weights").

    Args:
        kind: which of them.
        weights: w, m ≤ n non-negative numbers, not all zero; query t of n counts w_⌊tm/n⌋, so that n of them
            give every query its own. Only for "weights".

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
            raise ValueError(f"w (weights) must be given for objective weights, and no other; got {len(w)}.")
        if w and not (all(0 <= value < math.inf for value in w) and any(w)):
            raise ValueError(f"w (weights) must be finite, non-negative and not all zero; got {min(w)}.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The objective of a command line or a configuration.

        Raises:
            ValueError: the text is none.

        >>> Objective.parse("max").label
        'MaxSE'
        """
        kind, colon, values = text.partition(":")
        try:
            weights = tuple(float(value) for value in values.split(",")) if colon else ()
        except ValueError:
            raise ValueError(f"objective must be {_FORMS}; got {text!r}. Separate them by commas.") from None
        return cls(kind, weights)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """What `parse` reads."""
        return ":".join([self.kind, *([",".join(repr(w) for w in self.weights)] if self.weights else [])])

    @property
    def label(self) -> str:
        """The name of its error."""
        return _LABELS[self.kind]

    @property
    def orders(self) -> tuple[float, ...]:
        """Power means to minimise one after the other: the plain mean, or five that tend to the largest."""
        return _ORDERS if self.kind == "max" else (1.0,)

    def spread(self, rounds: int) -> Vector:
        """The weight of each query, mean 1, shape (n,).

        Raises:
            ValueError: there are more weights than queries, or those of all queries are 0.

        >>> LAST.spread(3)
        array([0., 0., 3.])
        """
        w = np.ones(rounds)
        if self.kind == "last":
            w[:-1] = 0.0
        elif self.weights:
            if len(self.weights) > rounds:
                raise ValueError(
                    f"w (weights of the objective) must be at most n={rounds}; got {len(self.weights)}."
                )
            w = np.array(self.weights)[np.arange(rounds) * len(self.weights) // rounds]
        return np.asarray(w / w.mean(), dtype=np.float64)

    def queries(self, workload: ToeplitzWorkload) -> ToeplitzWorkload:
        """The workload whose mean squared error is this objective; for "max", that of its power means."""
        if self.kind in ("rmse", "max"):
            return workload
        return weighted(workload, rows=np.sqrt(self.spread(workload.rounds)))

    def for_toeplitz(self, workload: ToeplitzWorkload) -> Objective:
        """The same for C = LTT(c): without weights in A the last query has the largest error.

        A C⁻¹ = LTT(w) then, and v_t = Σ_{s ≤ t} w_s² grows with t.
        """
        plain = workload.row_weights is None and workload.column_weights is None
        return LAST if self.kind == "max" and plain else self

    def check_counts_all(self, name: str) -> None:
        """Refuse an objective that leaves queries out, for C without a form that ties queries together.

        Every other query's noise could then grow without bound: there is no minimum.

        Raises:
            ValueError: it does.
        """
        least = min(self.weights, default=1.0) / max(self.weights, default=1.0)
        if self.kind == "last" or least < _LEAST_COUNTED:
            raise ValueError(
                f"objective must count every query (weights of at least 1e-8 of the largest) for {name}; got "
                f"{self.kind}. There is no minimum: queries that do not count would be buried in noise. "
                "Use banded-toeplitz, banded-inverse or blt."
            )

    def squared_error(self, variances: Vector) -> float:
        """Of the v_t, the row weights of A included.

        >>> MAX.squared_error(np.array([1.0, 3.0, 2.0]))
        3.0
        """
        if self.kind in ("max", "last"):
            return float(variances.max() if self.kind == "max" else variances[-1])
        return float(self.spread(variances.size) @ variances / variances.size)


RMSE: Final = Objective()
MAX: Final = Objective("max")
LAST: Final = Objective("last")


@dataclass(frozen=True, eq=False)
class PowerMean:
    """E_q = (Σ_t (r_t² v_t)^q)^{1/q} of query variances v, written as Σ_t ρ_t v_t.

    With ρ_t = r_t²(r_t² v_t/E_q)^{q−1} the sum Σ ρ_t v_t is E_q, and so is its gradient with ρ held fixed:
    ∂E_q/∂v_t = E_q^{1−q}(r_t² v_t)^{q−1} r_t² = ρ_t. So whatever computes a weighted sum with its gradient
    computes E_q. It is the sum for q = 1, and at most n^{1/q} times the largest r_t² v_t.

    Args:
        squares: r², shape (n,).
        order: q ≥ 1.

    >>> power = PowerMean(np.ones(2), 8.0)
    >>> v = np.array([1.0, 2.0])
    >>> bool(abs(power(v) @ v - (1 + 2**8) ** (1 / 8)) < 1e-12)
    True
    """

    squares: Vector
    order: float = 1.0

    @classmethod
    def of(cls, workload: ToeplitzWorkload, order: float) -> Self:
        """With the row weights of a workload."""
        rows = workload.row_weights
        return cls(np.ones(workload.rounds) if rows is None else rows**2, order)

    def __call__(self, variances: Vector) -> Vector:
        """ρ, shape (n,)."""
        if self.order == 1.0:
            return self.squares
        x = self.squares * variances
        largest = float(x.max())
        if not 0 < largest < math.inf:
            return self.squares
        shares = x / largest
        total = float((shares**self.order).sum()) ** (1.0 / self.order)
        return self.squares * (shares / total) ** (self.order - 1.0)
