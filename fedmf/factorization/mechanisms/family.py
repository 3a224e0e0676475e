"""What a mechanism by name is: one value that says how C is made, from which parameters, and for how long."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from fedmf.factorization.matrices import Factorization, NotRepresentable, Stamped, normalized
from fedmf.factorization.mechanisms.parameter import (
    LONG,
    Accuracy,
    DesignRequest,
    Free,
    Parameter,
    Trail,
    Values,
    chosen,
)
from fedmf.factorization.objectives import QuickError
from fedmf.participation import LARGEST_HORIZON, Participation

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
