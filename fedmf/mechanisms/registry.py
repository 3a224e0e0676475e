"""The registry of mechanisms: names, their parameters, and how those that are not given are chosen."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol

from fedmf.mechanisms.errors import LARGEST_RATED, RMSE, Objective, QuickError
from fedmf.mechanisms.matrix import Factorization, Stamped, normalized
from fedmf.mechanisms.optimise import minimize_from, minimize_on_interval
from fedmf.mechanisms.toeplitz import NotRepresentable
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import LARGEST_HORIZON, Participation

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
    >>> from fedmf.mechanisms.workload import prefix
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

    >>> from fedmf.mechanisms.workload import prefix
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


#: n for normalised columns, which take seconds for an error there.
_LARGEST_NORMALIZED: Final = 1_000_000
_LARGEST_NORMALIZED_COMPARED: Final = 16_384
_FINE, _NORMALIZED_COLUMNS, _COARSE = Accuracy(17, 1e-4), Accuracy(9, 5e-4), Accuracy(9, 0.01)

Make = Callable[[DesignRequest, Values], Factorization]
#: Parameters by symbol, the chosen ones included, and C.
Built = tuple[dict[str, float | int], Factorization]


def check_rounds(rounds: int) -> None:
    """Refuse a horizon that no mechanism is built for.

    Raises:
        ValueError: n > 10,000,000.
    """
    if rounds > LARGEST_HORIZON:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_HORIZON}; got {rounds}. No mechanism is built for more: "
            "plan a shorter run."
        )


def normalized_columns(make: Make) -> Make:
    """The same C with every column divided by its norm."""
    return lambda request, values: normalized(make(request, values))


@dataclass(frozen=True)
class Option:
    """A parameter that changes the construction and is never searched.

    Args:
        parameter: which.
        build: C from (form, request, value, the other parameters given).
    """

    parameter: Parameter
    build: Callable[[Form, DesignRequest, int, Values], Built]


@dataclass(frozen=True, eq=False)
class Family:
    """One mechanism, complete: everything that any part of the package asks about it.

    Args:
        name: as on the command line.
        meaning: in one line.
        make: C from the request and a value for each free parameter.
        free: the parameters, in the order in which they are chosen where they are not given.
        options: parameters that are never searched.
        largest: the largest n it is built for by name.
        largest_compared: the largest n at which a comparison without names includes it; 0 for never.
        normalize: how the form with normalised columns is made from `make`.
        optimized: whether an optimiser or a matrix of n² entries makes it, rather than a formula.
        entrywise: whether the optimiser moves every entry of C, which takes longest.
        largest_normalized: the largest n for that form, if below `largest`.
        largest_normalized_compared: the same in a comparison, if below `largest_compared`.
        also: what others call it; these names are understood wherever its own is, and written nowhere.
    """

    name: str
    meaning: str
    make: Make
    free: tuple[Free, ...] = ()
    options: tuple[Option, ...] = field(default_factory=lambda: (STAMPS,))
    largest: int = LARGEST_HORIZON
    largest_compared: int = LARGEST_HORIZON
    normalize: Callable[[Make], Make] = normalized_columns
    optimized: bool = False
    entrywise: bool = False
    largest_normalized: int = _LARGEST_NORMALIZED
    largest_normalized_compared: int = _LARGEST_NORMALIZED_COMPARED
    also: tuple[str, ...] = ()

    @property
    def plain(self) -> Form:
        """C as it is made."""
        return Form(self.name, self, self.make, lambda C: C, _FINE, self.largest, self.largest_compared)

    @property
    def normalized(self) -> Form:
        """C with normalised columns."""
        return Form(
            f"normalized-{self.name}",
            self,
            self.normalize(self.make),
            normalized,
            _NORMALIZED_COLUMNS,
            min(self.largest, self.largest_normalized),
            min(self.largest_compared, self.largest_normalized_compared),
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Free and optional ones."""
        return (*(free.parameter for free in self.free), *(option.parameter for option in self.options))

    def parameter(self, symbol: str, name: str, value: object) -> Parameter:
        """The free or optional parameter of this symbol.

        Args:
            symbol: which.
            name: of the form, for the message.
            value: asked for, for the message.

        Raises:
            ValueError: the mechanism has none.
        """
        for parameter in self.parameters:
            if parameter.symbol == symbol:
                return parameter
        takes = ", ".join(free.symbol for free in self.free) or "none"
        nearest = difflib.get_close_matches(symbol, [known.symbol for known in self.parameters], 1, 0.5)
        raise ValueError(
            f"{symbol} (parameter) must be one that {name} takes: {takes}; got {symbol}={value}."
            + "".join(f" Did you mean {known!r}?" for known in nearest)
        )


@dataclass(frozen=True, eq=False)
class Form:
    """A family with plain or with normalised columns: what a name stands for.

    Args:
        name: as on the command line.
        family: the mechanism.
        make: C from the request and the parameters, columns normalised if the name says so.
        columns: what turns another C of this family into this form.
        accuracy: of searches over real parameters.
        largest: the largest n it is built for.
        largest_compared: the largest n at which a comparison without names includes it.
    """

    name: str
    family: Family
    make: Make
    columns: Callable[[Factorization], Factorization]
    accuracy: Accuracy
    largest: int
    largest_compared: int

    def checked(self, given: Mapping[str, object], rounds: int | None) -> dict[str, float | int]:
        """Parameters by symbol, each a number of the right type; ``rounds`` is None where n is not known yet.

        Raises:
            ValueError: one that the mechanism does not take, or a value of the wrong type or out of range.
        """
        return {
            symbol: self.family.parameter(symbol, self.name, value).checked(value, self.name, rounds)
            for symbol, value in given.items()
        }

    def build(self, request: DesignRequest, given: Values) -> Built:
        """The parameters, those that are not given chosen, and C.

        Raises:
            ValueError: n is too large, or a parameter unknown, of the wrong type or out of range.
        """
        for option in self.family.options:
            symbol = option.parameter.symbol
            if symbol in given:
                value = option.parameter.checked(given[symbol], self.name, request.rounds)
                others = {other: given[other] for other in given if other != symbol}
                params, factorization = option.build(self, request, int(value), others)
                return {**params, symbol: int(value)}, factorization
        if request.rounds > self.largest:
            raise ValueError(
                f"n (rounds) must be at most {self.largest} for {self.name}; got {request.rounds}. "
                f"Use bisr or banded-toeplitz, which go up to n={LARGEST_HORIZON}."
            )
        return _Search(self, request, self.checked(given, request.rounds), self.make, self.accuracy).best()


def _stamped(form: Form, request: DesignRequest, stamps: int, others: Values) -> Built:
    """s blocks of m = ⌈n/s⌉ rounds, each built for the first m queries and what a user can do in m rounds."""
    contract, n = request.participation, request.rounds
    size = -(-n // stamps)
    fits = Participation.as_many_as_fit(size, contract.min_separation)
    participations = min(contract.max_participations, fits.max_participations)
    if request.objective.weights:
        raise ValueError(
            f"s (stamps) must be left out for weighted queries; got {stamps}. All blocks are built alike."
        )
    contract = replace(fits, max_participations=participations)
    block = DesignRequest(contract, request.workload.leading(size), request.objective)
    params, factorization = form.build(block, others)
    return params, Stamped(factorization, n)


STAMPS: Final = Option(
    Parameter("stamps", "how often a C for n/s rounds is repeated", integer=True, letter="s"), _stamped
)


@dataclass
class _Search:
    """Choose the parameters that were not given, one after the other."""

    form: Form
    request: DesignRequest
    given: Values
    make: Make
    accuracy: Accuracy
    _latest: tuple[Values, Factorization] | None = None
    _best: tuple[Values, Factorization] | None = None
    _least: float = math.inf

    @cached_property
    def _error(self) -> QuickError:
        return QuickError(self.request.participation, self.request.workload, self.request.objective)

    def best(self) -> Built:
        """The parameters and C."""
        values, all_free = dict(self.given), self.form.family.free
        for at, free in enumerate(all_free):
            if free.symbol not in self.given:
                values = _with(values, free, self.choice(free, values, all_free[at + 1 :]))
        return {free.symbol: values[free.symbol] for free in all_free}, self.made(values)

    def choice(self, free: Free, values: Values, later: Sequence[Free]) -> float:
        """The value of one parameter, given those before it."""

        def error(value: float, limit: float = math.inf) -> float:
            return self.error(_with(values, free, value), later, limit)

        return free.choose(self.request, values, error, self._accuracy_for(free, values, later))

    def _accuracy_for(self, free: Free, values: Values, later: Sequence[Free]) -> Accuracy:
        """Where an evaluation takes long, a real parameter is searched from where the coarse search ended."""
        plain = self.make is self.form.family.make
        if free.parameter.integer or (plain and self.request.rounds <= LONG):
            return self.accuracy
        if plain and self.coarse.trail.place is None:
            return replace(self.accuracy, grid=_COARSE.grid)
        if self.coarse.trail.place is None:
            self.coarse.choice(free, values, later)
        return replace(self.accuracy, trail=Trail(self.coarse.trail.place))

    @cached_property
    def coarse(self) -> _Search:
        """The same search without normalised columns, less accurate; a long one starts where the last ended.

        Shorter ones take the whole grid each time, since an error may have several minima.
        """
        accuracy = replace(_COARSE, trail=Trail(here=self.request.rounds > LONG))
        return _Search(self.form, self.request, self.given, self.form.family.make, accuracy)

    @property
    def trail(self) -> Trail:
        """Of a coarse search."""
        return self.accuracy.trail or Trail()

    def error(self, values: Values, later: Sequence[Free], limit: float) -> float:
        """The error with these values; later parameters are chosen coarsely, without normalised columns."""
        return self.coarse.least(values, later) if later else self.judged(values, limit)

    def least(self, values: Values, later: Sequence[Free]) -> float:
        """The least error over the later parameters."""
        if not later:
            return self.judged(values)
        free, *rest = later
        if free.symbol in self.given:
            return self.least(values, rest)

        def error(value: float, limit: float = math.inf) -> float:
            return self.least(_with(values, free, value), rest)

        return chosen(free, self.request, values, error, self.accuracy)[1]

    def judged(self, values: Values, limit: float = math.inf) -> float:
        try:
            error = self._error(self.made(values), limit)
        except NotRepresentable:
            return math.inf
        if error <= limit and error < self._least and self.request.rounds <= LONG:
            self._least, self._best = error, self._latest
        return error

    def made(self, values: Values) -> Factorization:
        """C, with what it knows of itself by now where it is the latest or the best."""
        for known in (self._latest, self._best):
            if known is not None and known[0] == values:
                return known[1]
        self._latest = (values, self.make(self.request, values))
        return self._latest[1]


def _with(values: Values, free: Free, value: float) -> dict[str, float | int]:
    return {**values, free.symbol: int(value) if free.parameter.integer else float(value)}


_FAMILIES: dict[str, Family] = {}


def register(*families: Family) -> None:
    """Enter mechanisms: names, `build`, tables and tests find them from then on.

    Raises:
        ValueError: a name is taken.
    """
    for family in families:
        if family.name in _FAMILIES:
            raise ValueError(f"name (mechanism) must be new; got {family.name!r}, which is registered.")
        _FAMILIES[family.name] = family


def families() -> list[Family]:
    """Every mechanism, formulas before optimisers.

    >>> [family.name for family in families()][:3]
    ['identity', 'square-root', 'bsr']
    """
    return sorted(_FAMILIES.values(), key=lambda family: family.optimized)


def _forms() -> dict[str, Form]:
    forms = [*(family.plain for family in families()), *(family.normalized for family in families())]
    return {form.name: form for form in forms}


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A named factorization with the parameters it was built from.

    Args:
        name: as on the command line.
        params: by ASCII name (`parameters`), the optimised ones included; `build` with these parameters gives
            the same factorization again.
        factorization: C.
    """

    name: str
    params: dict[str, float | int]
    factorization: Factorization


def names() -> list[str]:
    """All mechanism names, the column-normalised forms last.

    >>> names()[:3], names()[-1].startswith("normalized-")
    (['identity', 'square-root', 'bsr'], True)
    """
    return list(_forms())


def names_to_compare(rounds: int) -> list[str]:
    """The names that a comparison without names includes at this horizon: those that take seconds there.

    >>> "dense" in names_to_compare(512), "dense" in names_to_compare(513)
    (True, False)
    """
    return [form.name for form in _forms().values() if rounds <= form.largest_compared]


def own_name(name: str) -> str:
    """The name under which a mechanism is listed and recorded, of any spelling and of what others call it.

    >>> own_name("BandMF"), own_name("banded_toeplitz"), own_name("normalized-dp-ftrl"), own_name("unknown")
    ('banded-toeplitz', 'banded-toeplitz', 'normalized-tree', 'unknown')
    """
    spelt = name.lower().replace("_", "-")
    prefix, plain = ("normalized-", spelt[11:]) if spelt.startswith("normalized-") else ("", spelt)
    also = {other: family.name for family in families() for other in family.also}
    known = prefix + also.get(plain, plain)
    return known if known in _forms() else name


def form_of(name: str) -> Form:
    """What a name, or what others call it, stands for.

    Raises:
        ValueError: unknown name.

    >>> form_of("normalized-bsr").family.meaning
    'the first p coefficients of the square root'
    """
    form = _forms().get(own_name(name))
    if form is None:
        nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        fix = f"Did you mean {nearest[0]!r}?" if nearest else "fedmf design lists them."
        raise ValueError(f"mechanism (name) must be a known one; got {name!r}. {fix}")
    return form


def accepted_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that are chosen where they are not given.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return [free.symbol for free in form_of(name).family.free]


def optional_parameters(name: str) -> list[str]:
    """Parameters that change the construction and are never searched: stamps, and taper where C is banded.

    Raises:
        ValueError: unknown name.

    >>> optional_parameters("banded-toeplitz")
    ['stamps', 'taper']
    """
    return [option.parameter.symbol for option in form_of(name).family.options]


def parameters() -> dict[str, Parameter]:
    """Every parameter that some mechanism takes, by symbol.

    >>> parameters()["nu"].meaning, parameters()["buffers"].integer
    ('damping of the square root', True)
    """
    searched = (free.parameter for family in families() for free in family.free)
    optional = (option.parameter for family in families() for option in family.options)
    return {parameter.symbol: parameter for parameter in (*searched, *optional)}


def build(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    objective: Objective = RMSE,
) -> Mechanism:
    """The mechanism of this name; parameters not given minimise its error (sensitivity included).

    Args:
        name: one of `names()`.
        participation: (n, k, b).
        workload: A of n rounds; prefix sums by default.
        bands: p, where the mechanism takes it; may also be given in params.
        params: by symbol, those that the mechanism takes.
        objective: which error.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, a value out of range, or another
            workload.

    >>> build("cgd", Participation(64, 2, 32), params={"lambda": 0.9}).params
    {'lambda': 0.9}
    >>> build("bsr", Participation(64, 2, 32)).params
    {'bands': 32}
    """
    form, n = form_of(name), participation.rounds
    check_rounds(n)
    workload = prefix(n) if workload is None else workload
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds, those of C; got {workload.rounds}.")
    given = {**({} if bands is None else {"bands": bands}), **(params or {})}
    return Mechanism(form.name, *form.build(DesignRequest(participation, workload, objective), given))
