"""The registry of mechanisms: names, their parameters, and how those that are not given are
chosen.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedmf.matrices.factorization import (
    BuiltMechanism,
    Factorization,
    NotRepresentable,
    Stamped,
    normalized,
)
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.design_cache import remembered_parameters
from fedmf.mechanisms.objective import LARGEST_RATED, RMSE, Objective, QuickError, errors
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import LARGEST_HORIZON, Participation

#: Parameters by symbol: an int where the parameter is an integer, else a float.
Values = Mapping[str, Any]
#: What an optimiser is given besides its parameters.
Target = tuple[Participation, ToeplitzWorkload | None, Objective]
#: The error with a value in the place of the parameter that is chosen.
Error = Callable[[float], float]
#: Parameters by symbol, the chosen ones included, and C.
Built = tuple[dict[str, float | int], Factorization]

#: To be raised whenever searches find other parameters for the same request.
_SEARCH: Final = 5
# Points of the grid on which the search of a real parameter begins.
_GRID: Final = 7
# n for normalised columns, which take seconds for an error there, and in a comparison.
_LARGEST_NORMALIZED = 1_000_000
_LARGEST_NORMALIZED_COMPARED = 16_384
# n up to which bands and another parameter of a normalised form are searched together.
_LARGEST_NORMALIZED_SEARCH: Final = 4096


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
            ValueError: it is no finite number, no integer where it must be one, or an integer out
                of range.
        """
        # A comparison, which takes integers of any length and refuses nan.
        largest = sys.float_info.max
        if isinstance(value, bool) or not (
            isinstance(value, (int, float)) and abs(value) <= largest
        ):
            raise ValueError(
                f"{self.symbol} (parameter of {name}) must be a finite number; got {value!r}."
            )
        if not self.integer and value <= self.above:
            raise ValueError(
                f"{self.symbol} ({self.meaning}) must be above {self.above:g}; got {value}."
            )
        if not self.integer:
            return float(value)
        most = rounds if self.highest is None else self.highest
        if int(value) != value or value < self.lowest or (most is not None and value > most):
            label = (
                f"{self.letter} ({self.symbol})"
                if self.letter
                else f"{self.symbol} ({self.meaning})"
            )
            end = "n" if most is None else f"n={rounds}" if self.highest is None else str(most)
            raise ValueError(
                f"{label} must be an integer between {self.lowest} and {end}; got {value}."
            )
        return int(value)


@dataclass(frozen=True)
class DesignRequest:
    """What a mechanism is built for.

    Args:
        participation: (n, k, b).
        workload: A of n rounds.
        objective: which error is minimised.
        tolerance: of real parameters that are searched, as a fraction of their interval.
    """

    participation: Participation
    workload: ToeplitzWorkload
    objective: Objective = RMSE
    tolerance: float = 1e-4

    @property
    def rounds(self) -> int:
        """n."""
        return self.participation.rounds

    @property
    def separation(self) -> int:
        """min(b, n)."""
        return min(self.participation.min_separation, self.rounds)

    def stated_error(self, C: Factorization) -> float:
        """The objective of C with its stated sensitivity."""
        stated = sensitivity_of(C, self.participation)
        return errors(C, self.workload, stated, objective=self.objective).objective

    @property
    def target(self) -> Target:
        """Contract, A (None for prefix sums) and objective."""
        weighted = self.workload.row_weights is not None or self.workload.column_weights is not None
        known = weighted or bool((self.workload.coefficients != 1.0).any())
        return self.participation, self.workload if known else None, self.objective

    @property
    def rated_target(self) -> Target:
        """`target` without learning rates beyond n = 4096, where no Toeplitz optimiser can include
        them.
        """
        if self.workload.column_weights is not None and self.rounds > LARGEST_RATED:
            return replace(self, workload=replace(self.workload, column_weights=None)).target
        return self.target


#: Choose a value, given the request, the values fixed already, and the error with a value in its
#: place.
Choose = Callable[[DesignRequest, Values, Error], float]


@dataclass(frozen=True)
class SearchedParameter:
    """A parameter of one family with the way its value is chosen where none is given."""

    parameter: Parameter
    choose: Choose

    @property
    def symbol(self) -> str:
        """The symbol of the parameter."""
        return self.parameter.symbol


def search(
    free: Sequence[SearchedParameter],
    request: DesignRequest,
    given: Values,
    error: Callable[[Values], float],
) -> Values:
    """The given parameters with the free ones, chosen for the least error.

    The first is chosen by its own rule. For every value that the rule tries, the others are chosen
    anew.
    """
    if not free:
        return given
    first, *others = free

    @cache
    def completed(value: float) -> Values:
        number = int(value) if first.parameter.integer else float(value)
        return search(others, request, {**given, first.symbol: number}, error)

    return completed(first.choose(request, given, lambda value: error(completed(value))))


def least_on(error: Error, low: float, high: float, grid: int, tolerance: float) -> float:
    """The best point found in [low, high]: an even grid, then Brent's method around its best point.

    The grid makes the search safe for functions of several minima at least one grid step apart; the
    ends are part of it, so that a minimum at an end is found exactly. Infinity marks points that do
    not count.

    >>> round(least_on(lambda x: (x - 0.3) ** 2, 0.0, 1.0, 17, 1e-4), 3)
    0.3
    """
    from scipy.optimize import minimize_scalar

    points = np.linspace(low, high, grid).tolist()  # ends at `high` exactly
    errors_there = [error(x) for x in points]
    least = min(errors_there)
    at = errors_there.index(least)
    found = minimize_scalar(
        lambda x: min(error(float(x)), 1e300),
        bounds=(points[max(0, at - 1)], points[min(grid - 1, at + 1)]),
        method="bounded",
        options={"xatol": tolerance * (high - low)},
    )
    return float(found.x) if found.fun < least else points[at]


def best_on_interval(
    interval: Callable[[int, int], tuple[float, float]], value: Callable[[float, int], float]
) -> Choose:
    """Search u over an interval for the least error of value(u); both may depend on p, the interval
    on n.

    >>> square = best_on_interval(lambda n, p: (0.0, 2.0), lambda u, p: u * u)
    >>> asked = DesignRequest(Participation(4, 1, 4), prefix(4))
    >>> round(square(asked, {}, lambda x: abs(x - 1.0)), 3)
    1.0
    """

    def choose(request: DesignRequest, values: Values, error: Error) -> float:
        p = values.get("bands", 1)
        low, high = interval(request.rounds, p)
        u = least_on(lambda u: error(value(u, p)), low, high, _GRID, request.tolerance)
        return value(u, p)

    return choose


def one_of(*candidates: float) -> Choose:
    """The candidate of least error, the first among equals."""
    return lambda request, values, error: min(candidates, key=error)


def at_once(rule: Callable[[DesignRequest, Values], float]) -> Choose:
    """A value that needs no search."""
    return lambda request, values, error: rule(request, values)


def widths(request: DesignRequest) -> list[int]:
    """Powers of two up to n, and b."""
    return sorted({*(2**i for i in range(request.rounds.bit_length())), request.separation})


def _best_width(request: DesignRequest, values: Values, error: Error) -> float:
    """The bands of least error among powers of two and b."""
    return min(widths(request), key=error)


BANDS: Final = Parameter(
    "bands", "number of diagonals of C or of its inverse", integer=True, letter="p"
)
FREE_BANDS: Final = SearchedParameter(BANDS, _best_width)


@dataclass(frozen=True)
class Option:
    """A parameter that changes the construction and is never searched.

    Args:
        parameter: which.
        build: C from (form, request, value, the other parameters given).
    """

    parameter: Parameter
    build: Callable[[MechanismVariant, DesignRequest, int, Values], Built]


Make = Callable[[DesignRequest, Values], Factorization]


@dataclass(frozen=True, eq=False)
class MechanismFamily:
    """One mechanism, complete: everything that any part of the package asks about it.

    Args:
        name: as on the command line.
        meaning: in one line.
        make: C from the request and a value for each free parameter.
        searched: the parameters, in the order in which they are chosen where they are not given.
        options: parameters that are never searched.
        largest: the largest n it is built for by name.
        largest_compared: the largest n at which a comparison of all mechanisms includes it; 0 for
            never.
        make_normalized: C with normalised columns, if it is more than `make` with its columns
            normalised.
        optimized: whether an optimiser or a matrix of n² entries makes it, rather than a formula.
        entrywise: whether the optimiser moves every entry of C, which takes longest.
        compares_normalized: whether a comparison includes that form.
        aliases: what others call it; these names are understood wherever its own is, and written
            nowhere.
    """

    name: str
    meaning: str
    make: Make
    searched: tuple[SearchedParameter, ...] = ()
    options: tuple[Option, ...] = field(default_factory=lambda: (STAMPS,))
    largest: int = LARGEST_HORIZON
    largest_compared: int = LARGEST_HORIZON
    make_normalized: Make | None = None
    optimized: bool = False
    entrywise: bool = False
    compares_normalized: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def plain(self) -> MechanismVariant:
        """C as it is made."""
        return MechanismVariant(self, False)

    def parameter(self, symbol: str, name: str, value: object) -> Parameter:
        """The free or optional parameter of this symbol.

        Args:
            symbol: which.
            name: of the form, for the message.
            value: asked for, for the message.

        Raises:
            ValueError: the mechanism has none.
        """
        known = [part.parameter for part in (*self.searched, *self.options)]
        for parameter in known:
            if parameter.symbol == symbol:
                return parameter
        takes = ", ".join(free.symbol for free in self.searched) or "none"
        nearest = difflib.get_close_matches(
            symbol, [parameter.symbol for parameter in known], 1, 0.5
        )
        raise ValueError(
            f"{symbol} (parameter) must be one that {name} takes: {takes}; got {symbol}={value}."
            + "".join(f" Did you mean {other!r}?" for other in nearest)
        )


@dataclass(frozen=True, eq=False)
class MechanismVariant:
    """A family with plain or with normalised columns: what a name stands for."""

    family: MechanismFamily
    normalized: bool

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"normalized-{self.family.name}" if self.normalized else self.family.name

    @property
    def largest(self) -> int:
        """The largest n it is built for."""
        return (
            min(self.family.largest, _LARGEST_NORMALIZED)
            if self.normalized
            else self.family.largest
        )

    @property
    def largest_compared(self) -> int:
        """The largest n at which a comparison of all mechanisms includes it."""
        if not self.normalized:
            return self.family.largest_compared
        return min(
            self.family.largest_compared,
            self.family.compares_normalized * _LARGEST_NORMALIZED_COMPARED,
        )

    def columns(self, C: Factorization) -> Factorization:
        """Another C of this family in this form."""
        return normalized(C) if self.normalized else C

    def make(self, request: DesignRequest, values: Values) -> Factorization:
        """C from the request and the parameters."""
        if self.normalized and self.family.make_normalized is not None:
            return self.family.make_normalized(request, values)
        return self.columns(self.family.make(request, values))

    def checked(self, given: Mapping[str, object], rounds: int | None) -> dict[str, float | int]:
        """Parameters by symbol, each a number of the right type; ``rounds`` is None where n is not
        known yet.

        Raises:
            ValueError: one that the mechanism does not take, or a value of the wrong type or out of
                range.
        """
        return {
            symbol: (
                self.family.parameter(symbol, self.name, value).checked(value, self.name, rounds)
            )
            for symbol, value in given.items()
        }

    def build(self, request: DesignRequest, given: Values) -> Built:
        """The parameters, those that are not given chosen one after the other, and C.

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
        values = self.checked(given, request.rounds)
        free = [part for part in self.family.searched if part.symbol not in values]
        if free:
            searched_for = self.name, _SEARCH, request, dict(values)
            values = remembered_parameters(searched_for, lambda: self.best(free, request, values))
        return {part.symbol: values[part.symbol] for part in self.family.searched}, self.make(
            request, values
        )

    def best(
        self, free: Sequence[SearchedParameter], request: DesignRequest, given: Values
    ) -> Values:
        """The given parameters with the free ones, chosen for the least error.

        Beyond n = 4096, where an error with normalised columns takes long, bands are chosen for
        plain columns if other parameters follow.
        """
        long = self.normalized and request.rounds > _LARGEST_NORMALIZED_SEARCH
        if long and free[0] is FREE_BANDS and len(free) > 1:
            plain = self.family.plain.best(free, request, given)
            return self.best(free[1:], request, {**given, "bands": plain["bands"]})
        judge = QuickError(request.participation, request.workload, request.objective)

        def error(values: Values) -> float:
            try:
                return judge(self.make(request, values))
            except NotRepresentable:
                return math.inf

        return search(free, request, given, error)


def _stamped(form: MechanismVariant, request: DesignRequest, stamps: int, others: Values) -> Built:
    """s blocks of m = ⌈n/s⌉ rounds, each built for the first m queries and what a user can do in m
    rounds.
    """
    contract = request.participation
    size = -(-request.rounds // stamps)
    if request.objective.weights:
        raise ValueError(
            f"s (stamps) must be left out for weighted queries; got {stamps}. All blocks are built"
            " alike."
        )
    fits = Participation.as_many_as_fit(size, contract.min_separation)
    fits = replace(
        fits, max_participations=min(contract.max_participations, fits.max_participations)
    )
    params, block = form.build(
        DesignRequest(fits, request.workload.leading(size), request.objective), others
    )
    return params, Stamped(block, request.rounds)


STAMPS: Final = Option(
    Parameter("stamps", "how often a C for n/s rounds is repeated", integer=True, letter="s"),
    _stamped,
)
_FAMILIES: dict[str, MechanismFamily] = {}


def register(*families: MechanismFamily) -> None:
    """Enter mechanisms: names, `build`, tables and tests find them from then on.

    Raises:
        ValueError: a name is taken.
    """
    for family in families:
        if family.name in _FAMILIES:
            raise ValueError(
                f"name (mechanism) must be new; got {family.name!r}, which is registered."
            )
        _FAMILIES[family.name] = family
    _forms.cache_clear()


def families() -> list[MechanismFamily]:
    """Every mechanism, formulas before optimisers.

    >>> [family.name for family in families()][:3]
    ['identity', 'square-root', 'bsr']
    """
    _load()
    return sorted(_FAMILIES.values(), key=lambda family: (family.optimized, family.make.__module__))


@cache
def _load() -> None:
    """Import every module of mechanisms, which register themselves."""
    package = Path(__file__).parent
    for path in sorted(package.glob("[a-z]*.py")):
        if path.stem != "optimise":  # brings torch, and waits until a search needs it
            import_module(f"fedmf.mechanisms.{path.stem}")


@cache
def _forms() -> dict[str, MechanismVariant]:
    forms = [
        MechanismVariant(family, normalized)
        for normalized in (False, True)
        for family in families()
    ]
    return {form.name: form for form in forms}


def names() -> list[str]:
    """All mechanism names, the column-normalised forms last.

    >>> names()[:3], names()[-1].startswith("normalized-")
    (['identity', 'square-root', 'bsr'], True)
    """
    return list(_forms())


def names_to_compare(rounds: int) -> list[str]:
    """The names that a comparison of all mechanisms includes: those that take seconds at this n.

    >>> "dense" in names_to_compare(512), "dense" in names_to_compare(513)
    (True, False)
    """
    return [form.name for form in _forms().values() if rounds <= form.largest_compared]


def own_name(name: str) -> str:
    """The name under which a mechanism is listed and recorded, of any spelling and of what others
    call it.

    >>> own_name("BandMF"), own_name("banded_toeplitz"), own_name("normalized-dp-ftrl"), own_name("unknown")
    ('banded-toeplitz', 'banded-toeplitz', 'normalized-tree', 'unknown')
    """
    spelt = name.lower().replace("_", "-")
    prefix, plain = ("normalized-", spelt[11:]) if spelt.startswith("normalized-") else ("", spelt)
    known = prefix + next((family.name for family in families() if plain in family.aliases), plain)
    return known if known in _forms() else name


def variant_of(name: str) -> MechanismVariant:
    """What a name, or what others call it, stands for.

    Raises:
        ValueError: unknown name.

    >>> variant_of("normalized-bsr").family.meaning
    'the first p coefficients of the square root'
    """
    form = _forms().get(own_name(name))
    if form is None:
        known = [*names(), *(other for family in families() for other in family.aliases)]
        fix = "".join(
            f"Did you mean {near!r}? " for near in difflib.get_close_matches(name, known, 1, 0.5)
        )
        raise ValueError(
            f"mechanism (name) must be a known one; got {name!r}. {fix}fedmf design --all lists"
            " them."
        )
    return form


def accepted_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that are chosen where they are not given.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return [free.symbol for free in variant_of(name).family.searched]


def optional_parameters(name: str) -> list[str]:
    """Parameters that change the construction and are never searched: stamps, and taper where C is
    banded.

    Raises:
        ValueError: unknown name.

    >>> optional_parameters("banded-toeplitz")
    ['stamps', 'taper']
    """
    return [option.parameter.symbol for option in variant_of(name).family.options]


def parameters() -> dict[str, Parameter]:
    """Every parameter that some mechanism takes, by symbol.

    >>> parameters()["nu"].meaning, parameters()["buffers"].integer
    ('damping of the square root', True)
    """
    searched = [free.parameter for family in families() for free in family.searched]
    optional = [option.parameter for family in families() for option in family.options]
    return {parameter.symbol: parameter for parameter in (*searched, *optional)}


def check_rounds(rounds: int) -> None:
    """Refuse a horizon that no mechanism is built for.

    Raises:
        ValueError: n > 10,000,000.
    """
    if rounds > LARGEST_HORIZON:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_HORIZON}; got {rounds}. No mechanism is built for"
            " more: plan a shorter run."
        )


def build(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    objective: Objective = RMSE,
) -> BuiltMechanism:
    """The mechanism of this name; parameters not given minimise its error (sensitivity included).

    Args:
        name: one of `names()`.
        participation: (n, k, b).
        workload: A of n rounds; prefix sums by default.
        bands: p, where the mechanism takes it; may also be given in params.
        params: by symbol, those that the mechanism takes.
        objective: which error.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, a value out of range,
            or another workload.

    >>> build("cgd", Participation(64, 2, 32), params={"lambda": 0.9}).params
    {'lambda': 0.9}
    >>> build("bsr", Participation(64, 2, 32)).params
    {'bands': 32}
    """
    form = variant_of(name)
    n = participation.rounds
    check_rounds(n)
    workload = prefix(n) if workload is None else workload
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds, as C has; got {workload.rounds}.")
    given = {**({} if bands is None else {"bands": bands}), **(params or {})}
    return BuiltMechanism(
        form.name, *form.build(DesignRequest(participation, workload, objective), given)
    )
