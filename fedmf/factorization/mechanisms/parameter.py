"""Parameters of mechanisms by name: what each means, which values it takes, and how a free one is chosen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from fedmf.factorization.algebra import minimize_from, minimize_on_interval
from fedmf.factorization.objectives import LARGEST_RATED, RMSE, Objective
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

# The first step of a search that starts where a similar one ended, and the fewest bands that tell.
_NEAR, _TELLING_BANDS = 0.04, 8

#: Beyond this many rounds searches spare evaluations: they start where coarser ones ended.
LONG: Final = 65_536

#: What an optimiser is given besides its parameters.
Target = tuple[Participation, ToeplitzWorkload | None, Objective]
#: Parameters by symbol: an int where the parameter is an integer, else a float.
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A number that a mechanism takes by name.

    Args:
        symbol: its ASCII name.
        meaning: in a few words.
        integer: whether it is an integer rather than a real number.
        lowest: of an integer.
        highest: of an integer; None for n, the number of rounds.
        above: what a real number must exceed.
        letter: how formulas call it, where that is not the symbol.
    """

    symbol: str
    meaning: str
    integer: bool = False
    lowest: int = 1
    highest: int | None = None
    above: float = -math.inf
    letter: str = ""

    def checked(self, value: object, name: str, rounds: int | None) -> float | int:
        """The value as a number of the right type.

        Args:
            value: what was asked for.
            name: of the mechanism.
            rounds: n; None where it is not known yet.

        Raises:
            ValueError: it is no finite number, no integer where it must be one, or an integer out of range.
        """
        # A comparison, which takes integers of any length and refuses nan.
        largest = sys.float_info.max
        if isinstance(value, bool) or not (isinstance(value, (int, float)) and abs(value) <= largest):
            raise ValueError(f"{self.symbol} (parameter of {name}) must be a finite number; got {value!r}.")
        if not self.integer and value <= self.above:
            raise ValueError(f"{self.symbol} ({self.meaning}) must be above {self.above:g}; got {value}.")
        if not self.integer:
            return float(value)
        most = rounds if self.highest is None else self.highest
        if int(value) != value or value < self.lowest or (most is not None and value > most):
            label = f"{self.letter} ({self.symbol})" if self.letter else f"{self.symbol} ({self.meaning})"
            end = "n" if most is None else f"n={rounds}" if self.highest is None else str(most)
            raise ValueError(f"{label} must be an integer between {self.lowest} and {end}; got {value}.")
        return int(value)


@dataclass(frozen=True)
class DesignRequest:
    """What a mechanism is built for.

    Args:
        participation: (n, k, b).
        workload: A of n rounds.
        objective: which error is minimised.
    """

    participation: Participation
    workload: ToeplitzWorkload
    objective: Objective = RMSE

    @property
    def rounds(self) -> int:
        """n."""
        return self.participation.rounds

    @property
    def separation(self) -> int:
        """min(b, n)."""
        return min(self.participation.min_separation, self.rounds)

    @property
    def target(self) -> Target:
        """Contract, A (None for prefix sums: workloads are compared by identity) and objective."""
        weighted = self.workload.row_weights is not None or self.workload.column_weights is not None
        known = weighted or bool((self.workload.coefficients != 1.0).any())
        return self.participation, self.workload if known else None, self.objective

    @property
    def rated_target(self) -> Target:
        """`target` without learning rates beyond n = 4096, where no Toeplitz optimiser can include them."""
        if self.workload.column_weights is not None and self.rounds > LARGEST_RATED:
            return replace(self, workload=replace(self.workload, column_weights=None)).target
        return self.target


@dataclass
class Trail:
    """Where the last of several similar searches ended.

    Args:
        place: as a point of its interval; None at first.
        here: whether the next search starts there, rather than with a grid.
    """

    place: float | None = None
    here: bool = True


@dataclass(frozen=True)
class Accuracy:
    """How closely a real parameter is searched.

    Args:
        grid: points of the first, even grid.
        tolerance: of the result, as a fraction of the interval.
        trail: kept from search to search; where it has a place the search starts there, without a grid.
    """

    grid: int
    tolerance: float
    trail: Trail | None = None


class Error(Protocol):
    """The error with a value in the place of the parameter that is chosen."""

    def __call__(self, value: float, limit: float = math.inf, /) -> float:
        """Of an error above the limit no more is told than a bound from below that is above it as well."""
        ...


#: Choose a value, given the request, the values fixed already, and the error with a value in its place.
Choose = Callable[[DesignRequest, Values, Error, Accuracy], float]


@dataclass(frozen=True)
class Free:
    """A parameter of one family with the way its value is chosen where none is given."""

    parameter: Parameter
    choose: Choose

    @property
    def symbol(self) -> str:
        """Of the parameter."""
        return self.parameter.symbol


def chosen(
    free: Free, request: DesignRequest, values: Values, error: Error, accuracy: Accuracy
) -> tuple[float, float]:
    """The value chosen and its error."""
    judged: dict[float, float] = {}

    def recorded(value: float, limit: float = math.inf) -> float:
        judged[value] = min(latest := error(value, limit), judged.get(value, math.inf))
        return latest

    value = free.choose(request, values, recorded, accuracy)
    return value, judged[value] if value in judged else error(value)


def best_on_interval(
    interval: Callable[[int, int], tuple[float, float]], value: Callable[[float, int], float]
) -> Choose:
    """Search u over an interval for the least error of value(u); both may depend on p, the interval on n.

    >>> square = best_on_interval(lambda n, p: (0.0, 2.0), lambda u, p: u * u)
    >>> from fedmf.workload import prefix
    >>> asked = DesignRequest(Participation(4, 1, 4), prefix(4))
    >>> round(square(asked, {}, lambda x: abs(x - 1.0), Accuracy(17, 1e-4)), 3)
    1.0
    """

    def choose(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
        p = values.get("bands", 1)
        low, high = interval(request.rounds, p)
        if low == high:
            return value(low, p)

        def judged(u: float) -> float:
            return error(value(u, p))

        trail, tolerance = accuracy.trail or Trail(), accuracy.tolerance
        if trail.place is None or not trail.here:
            u, _ = minimize_on_interval(judged, low, high, accuracy.grid, tolerance)
        else:
            u, _ = minimize_from(judged, min(max(trail.place, low), high), low, high, _NEAR, tolerance)
        # With few bands the parameter hardly matters, and says little about more.
        trail.place = u if "bands" not in values or p >= _TELLING_BANDS else None
        return value(u, p)

    return choose


def one_of(*candidates: float) -> Choose:
    """The candidate of least error, the first among equals; what cannot be it is not looked at closely.

    >>> from fedmf.workload import prefix
    >>> asked = DesignRequest(Participation(4, 1, 4), prefix(4))
    >>> one_of(3, 2, 1)(asked, {}, lambda value, limit=math.inf: abs(value - 1.5), Accuracy(3, 0.1))
    2
    """

    def choose(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
        lowest = {value: error(value, 0.0) for value in candidates}
        errors: dict[float, float] = {}
        for value in sorted(candidates, key=lowest.__getitem__):
            if lowest[value] <= (least := min(errors.values(), default=math.inf)):
                errors[value] = error(value, least)
        return min((value for value in candidates if value in errors), key=errors.__getitem__)

    return choose


def at_once(rule: Callable[[DesignRequest, Values], float]) -> Choose:
    """A value that needs no search."""
    return lambda request, values, error, accuracy: rule(request, values)


def widths(request: DesignRequest) -> list[int]:
    """Powers of two up to n, and b."""
    return sorted({*(2**i for i in range(request.rounds.bit_length())), request.separation})


def best_width(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
    """The bands of least error among powers of two and b.

    At long horizons no more is tried once twice in a row wider ones than b were worse than the best.
    """
    least, best, worse = math.inf, 1, 0
    for p in widths(request):
        if (latest := error(p)) < least:
            least, best, worse = latest, p, 0
        elif p > request.separation:
            worse += 1
        if worse == 2 and request.rounds > LONG:
            break
    return best


BANDS: Final = Parameter("bands", "number of diagonals of C or of its inverse", integer=True, letter="p")
LAMBDA: Final = Parameter("lambda", "share of the last round's noise that is taken back")
GAMMA: Final = Parameter("gamma", "exponent of the workload")
NU: Final = Parameter("nu", "damping of the square root")
SHIFT: Final = Parameter("c", "shift added to every coefficient")
FULL: Final = Parameter("full", "1 for the full estimator, 0 for online", integer=True, lowest=0, highest=1)
ARITY: Final = Parameter("arity", "children of a node", integer=True, lowest=2, highest=4096)
BUFFERS: Final = Parameter("buffers", "state vectors kept", integer=True, highest=10, letter="m")
TAPER: Final = Parameter(
    "taper", "separation from which coefficients fall to 0", integer=True, lowest=0, letter="b_0"
)
ETA: Final = Parameter("eta", "learning rate of gradient descent", above=0.0)
MU: Final = Parameter("mu", "smallest curvature of the objective", above=0.0)
SMOOTHNESS: Final = Parameter("smoothness", "largest curvature of the objective", above=0.0)
EIGENVALUES: Final = Parameter(
    "eigenvalues", "number of curvatures, in geometric steps", integer=True, highest=4096
)
LAGS: Final = Parameter("lags", "multipliers on each side", integer=True, lowest=0, highest=32)
VARIANCE: Final = Parameter("variance", "of the stochastic gradients, where that of the noise is 1")

FREE_BANDS: Final = Free(BANDS, best_width)
FREE_LAMBDA: Final = Free(
    LAMBDA, best_on_interval(lambda n, p: (0.0, math.log(10.0 * n)), lambda u, p: -math.expm1(-u))
)
FREE_GAMMA: Final = Free(GAMMA, best_on_interval(lambda n, p: (0.01, 1.0), lambda u, p: u))
FREE_NU: Final = Free(NU, best_on_interval(lambda n, p: (math.log(1e-3 / n), 0.0), lambda u, p: math.exp(u)))
# The interesting scale of c is 1/p: at c = -1/p the last coefficient vanishes.
FREE_SHIFT: Final = Free(
    SHIFT,
    best_on_interval(
        lambda n, p: (-1.0, 4.0) if p > 1 else (0.0, 0.0),
        lambda u, p: max(math.copysign(10 ** abs(u) - 1, u) / p, -0.9),
    ),
)
# The square root falls like j^{-1/2}: at c = -1/sqrt(p) its end is near zero.
FREE_ROOT_SHIFT: Final = Free(
    SHIFT,
    best_on_interval(
        lambda n, p: (-1.0, 4.0) if p > 1 else (0.0, 0.0),
        lambda u, p: max(math.copysign(10 ** abs(u) - 1, u) / math.sqrt(p), -0.9),
    ),
)
