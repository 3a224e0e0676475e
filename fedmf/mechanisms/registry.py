"""The registry of mechanisms by name, and the search of parameters that are not given.

`build` is the way from a name to a strategy matrix C: `variant_of` finds the mechanism, `search`
chooses the parameters that are missing, and the family's own function makes C of them. A grid and
SciPy's `minimize_scalar` choose real parameters; integers have a few candidates. Modules of
mechanisms register their families when they are imported, which happens on first use.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
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
from fedmf.mechanisms.design_cache import cached_parameters
from fedmf.mechanisms.objective import LARGEST_RATED, RMSE, Objective, QuickError, errors
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import LARGEST_HORIZON, Participation

#: Parameters by symbol: an int where the parameter is an integer, else a float.
Values = Mapping[str, Any]
#: The arguments of an optimizer besides its parameters: contract, A, objective.
Target = tuple[Participation, ToeplitzWorkload | None, Objective]
#: The error with a value in the place of the parameter that is chosen.
Error = Callable[[float], float]
#: Parameters by symbol, the chosen ones included, and C.
Built = tuple[dict[str, float | int], Factorization]

#: To be raised whenever searches find other parameters for the same request.
_SEARCH: Final = 5
# Points of the grid on which the search of a real parameter begins.
_GRID: Final = 7
# The largest n for normalized columns, where one error takes seconds, and in a comparison.
_LARGEST_NORMALIZED = 1_000_000
_LARGEST_NORMALIZED_COMPARED = 16_384
# The largest n at which bands and another parameter of a normalized variant are searched together.
_LARGEST_NORMALIZED_SEARCH: Final = 4096
_NORMALIZED: Final = "normalized-"
# Modules without mechanisms that bring torch or much of SciPy.
_LOADED_WHEN_NEEDED: Final = ("optimize", "amplified_noise", "amplified_search")


@dataclass(frozen=True)
class Parameter:
    """A number that a mechanism takes by name.

    Args:
        symbol: its ASCII name.
        meaning: in a few words.
        integer: whether it is an integer rather than a real number.
        lowest: the smallest value of an integer.
        highest: the largest value of an integer; None for n, the number of rounds.
        above: the bound that a real number must exceed.
        letter: its letter in formulas, where that is not the symbol.
    """

    symbol: str
    meaning: str
    integer: bool = False
    lowest: int = 1
    highest: int | None = None
    above: float = -math.inf
    letter: str = ""

    def number(self, value: float) -> float | int:
        """The value as an int for an integer parameter, else as a float."""
        if self.integer:
            return int(value)
        return float(value)

    def checked(self, value: object, name: str, rounds: int | None) -> float | int:
        """The value as a number of the right type.

        Args:
            value: the value that the user gave.
            name: the name of the mechanism.
            rounds: n; None where it is not known yet.

        Raises:
            ValueError: it is not a finite number, not an integer where it must be one, or out of
                range.
        """
        # A comparison takes integers of any length and rejects nan.
        most = sys.float_info.max
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise ValueError(
                f"{self.symbol} (parameter of {name}) must be a finite number; got {value!r}."
            )
        if self.integer:
            self._check_integer(value, rounds)
        elif value <= self.above:
            raise ValueError(
                f"{self.symbol} ({self.meaning}) must be above {self.above:g}; got {value}."
            )
        return self.number(value)

    def _check_integer(self, value: float, rounds: int | None) -> None:
        if self.highest is not None:
            highest: float = self.highest
            bound = str(self.highest)
        elif rounds is not None:
            highest = rounds
            bound = f"n={rounds}"
        else:
            highest = math.inf
            bound = "n"
        if int(value) == value and self.lowest <= value <= highest:
            return
        label = f"{self.symbol} ({self.meaning})"
        if self.letter:
            label = f"{self.letter} ({self.symbol})"
        raise ValueError(
            f"{label} must be an integer between {self.lowest} and {bound}; got {value}."
        )


@dataclass(frozen=True)
class DesignRequest:
    """The setting that a mechanism is built for.

    Args:
        participation: (n, k, b).
        workload: A of n rounds.
        objective: the error to minimize.
        tolerance: the accuracy of searched real parameters, as a fraction of their interval.
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
        plain = self.workload.row_weights is None and self.workload.column_weights is None
        if plain and bool((self.workload.coefficients == 1.0).all()):
            return self.participation, None, self.objective
        return self.participation, self.workload, self.objective

    @property
    def rated_target(self) -> Target:
        """`target` for Toeplitz optimizers, which include learning rates up to n = 4096 only."""
        if self.workload.column_weights is not None and self.rounds > LARGEST_RATED:
            return replace(self, workload=replace(self.workload, column_weights=None)).target
        return self.target


#: A rule that chooses a value, given the request, the values chosen already, and the error as a
#: function of the value.
Choose = Callable[[DesignRequest, Values, Error], float]


@dataclass(frozen=True)
class SearchedParameter:
    """A parameter of one family, with the rule that chooses its value where none is given."""

    parameter: Parameter
    choose: Choose

    @property
    def symbol(self) -> str:
        """The symbol of the parameter."""
        return self.parameter.symbol


def search(
    searched: Sequence[SearchedParameter],
    request: DesignRequest,
    given: Values,
    error: Callable[[Values], float],
) -> Values:
    """The given parameters with the searched ones, chosen for the least error.

    The first parameter is chosen by its own rule, with the best values of the others for every
    value that the rule tries.
    """
    if not searched:
        return given
    first, *others = searched
    symbol = first.symbol

    @cache
    def completed(value: float) -> Values:
        values = {**given, symbol: first.parameter.number(value)}
        return search(others, request, values, error)

    best = first.choose(request, given, lambda value: error(completed(value)))
    return completed(best)


def minimize_on_interval(
    error: Error, low: float, high: float, grid: int, tolerance: float
) -> float:
    """The best point of [low, high] by an even grid, then Brent's method around its best point.

    The grid makes the search safe for functions of several minima at least one grid step apart. The
    ends are part of it, so that a minimum at an end is exact. Points of infinite error do not
    count.

    >>> round(minimize_on_interval(lambda x: (x - 0.3) ** 2, 0.0, 1.0, 17, 1e-4), 3)
    0.3
    """
    from scipy.optimize import minimize_scalar

    points = np.linspace(low, high, grid).tolist()  # ends at `high` exactly
    grid_errors = [error(point) for point in points]
    least = min(grid_errors)
    best = grid_errors.index(least)
    optimum = minimize_scalar(
        lambda x: min(error(float(x)), 1e300),
        bounds=(points[max(0, best - 1)], points[min(grid - 1, best + 1)]),
        method="bounded",
        options={"xatol": tolerance * (high - low)},
    )
    if optimum.fun < least:
        return float(optimum.x)
    return points[best]


def best_on_interval(
    interval: Callable[[int, int], tuple[float, float]], value: Callable[[float, int], float]
) -> Choose:
    """The rule that chooses value(u, p) for the u of least error in the interval (n, p).

    >>> square = best_on_interval(lambda n, p: (0.0, 2.0), lambda u, p: u * u)
    >>> request = DesignRequest(Participation(4, 1, 4), prefix(4))
    >>> round(square(request, {}, lambda x: abs(x - 1.0)), 3)
    1.0
    """

    def choose(request: DesignRequest, values: Values, error: Error) -> float:
        p = values.get("bands", 1)
        low, high = interval(request.rounds, p)
        u = minimize_on_interval(lambda u: error(value(u, p)), low, high, _GRID, request.tolerance)
        return value(u, p)

    return choose


def one_of(*candidates: float) -> Choose:
    """The rule that chooses the candidate of least error, the first among equals."""
    return lambda request, values, error: min(candidates, key=error)


def without_search(rule: Callable[[DesignRequest, Values], float]) -> Choose:
    """The rule that computes a value from the request and the values chosen already."""
    return lambda request, values, error: rule(request, values)


def candidate_bands(request: DesignRequest) -> list[int]:
    """Powers of two up to n, and b."""
    powers = [2**i for i in range(request.rounds.bit_length())]
    return sorted({*powers, request.separation})


def _best_bands(request: DesignRequest, values: Values, error: Error) -> float:
    return min(candidate_bands(request), key=error)


BANDS: Final = Parameter(
    "bands", "number of diagonals of C or of its inverse", integer=True, letter="p"
)
SEARCHED_BANDS: Final = SearchedParameter(BANDS, _best_bands)


@dataclass(frozen=True)
class OptionalParameter:
    """A parameter that changes the construction and is never searched.

    Args:
        parameter: the parameter.
        build: C from (variant, request, value, the other parameters given).
    """

    parameter: Parameter
    build: Callable[[MechanismVariant, DesignRequest, int, Values], Built]

    @property
    def symbol(self) -> str:
        """The symbol of the parameter."""
        return self.parameter.symbol


Make = Callable[[DesignRequest, Values], Factorization]


@dataclass(frozen=True, eq=False)
class MechanismFamily:
    """The complete description of one mechanism.

    Args:
        name: as on the command line.
        meaning: in one line.
        make: C from the request and a value for each searched parameter.
        searched: the parameters, in the order in which they are chosen where they are not given.
        optional: parameters that are never searched.
        max_rounds: the largest n it is built for by name.
        max_rounds_compared: the largest n at which a comparison of all mechanisms includes it; 0
            for never.
        make_normalized: C with normalized columns, if it is more than `make` with its columns
            normalized.
        optimized: whether an optimizer or a matrix of n² entries makes it, rather than a formula.
        entrywise: whether the optimizer moves every entry of C, which takes longest.
        compares_normalized: whether a comparison includes the variant with normalized columns.
        aliases: names in the literature and in other libraries. They are accepted wherever the
            family's own name is, and never written.
    """

    name: str
    meaning: str
    make: Make
    searched: tuple[SearchedParameter, ...] = ()
    optional: tuple[OptionalParameter, ...] = field(default_factory=lambda: (STAMPS,))
    max_rounds: int = LARGEST_HORIZON
    max_rounds_compared: int = LARGEST_HORIZON
    make_normalized: Make | None = None
    optimized: bool = False
    entrywise: bool = False
    compares_normalized: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def plain_variant(self) -> MechanismVariant:
        """C without normalized columns."""
        return MechanismVariant(self, False)

    def parameter(self, symbol: str, name: str, value: object) -> Parameter:
        """The searched or optional parameter of this symbol.

        Args:
            symbol: the symbol.
            name: the name of the variant, for the message.
            value: the value that the user gave, for the message.

        Raises:
            ValueError: the mechanism has none.
        """
        known = {each.symbol: each.parameter for each in (*self.searched, *self.optional)}
        if symbol in known:
            return known[symbol]
        accepted = ", ".join(parameter.symbol for parameter in self.searched) or "none"
        message = (
            f"{symbol} (parameter) must be one that {name} takes: {accepted}; got {symbol}={value}."
        )
        nearest = difflib.get_close_matches(symbol, list(known), 1, 0.5)
        if nearest:
            message += f" Did you mean {nearest[0]!r}?"
        raise ValueError(message)


@dataclass(frozen=True, eq=False)
class MechanismVariant:
    """A family with plain or with normalized columns. Every name stands for one of these."""

    family: MechanismFamily
    normalized: bool

    @property
    def name(self) -> str:
        """The name on the command line."""
        if self.normalized:
            return _NORMALIZED + self.family.name
        return self.family.name

    @property
    def max_rounds(self) -> int:
        """The largest n it is built for."""
        if self.normalized:
            return min(self.family.max_rounds, _LARGEST_NORMALIZED)
        return self.family.max_rounds

    @property
    def max_rounds_compared(self) -> int:
        """The largest n at which a comparison of all mechanisms includes it."""
        if not self.normalized:
            return self.family.max_rounds_compared
        if not self.family.compares_normalized:
            return 0
        return min(self.family.max_rounds_compared, _LARGEST_NORMALIZED_COMPARED)

    def with_columns(self, C: Factorization) -> Factorization:
        """C, with its columns normalized in a normalized variant."""
        if self.normalized:
            return normalized(C)
        return C

    def make(self, request: DesignRequest, values: Values) -> Factorization:
        """C from the request and the parameters."""
        if self.normalized and self.family.make_normalized is not None:
            return self.family.make_normalized(request, values)
        return self.with_columns(self.family.make(request, values))

    def checked(self, given: Mapping[str, object], rounds: int | None) -> dict[str, float | int]:
        """Parameters by symbol, each a number of the right type.

        Args:
            given: parameters by symbol.
            rounds: n; None where it is not known yet.

        Raises:
            ValueError: the mechanism does not take a parameter, or a value has the wrong type or is
                out of range.
        """
        numbers: dict[str, float | int] = {}
        for symbol, value in given.items():
            parameter = self.family.parameter(symbol, self.name, value)
            numbers[symbol] = parameter.checked(value, self.name, rounds)
        return numbers

    def build(self, request: DesignRequest, given: Values) -> Built:
        """All parameters, where those that are not given are searched, and C.

        Raises:
            ValueError: n is too large, or a parameter unknown, of the wrong type or out of range.
        """
        for option in self.family.optional:
            if option.symbol in given:
                return self._build_with(option, request, given)
        if request.rounds > self.max_rounds:
            raise ValueError(
                f"n (rounds) must be at most {self.max_rounds} for {self.name}; got"
                f" {request.rounds}. Use bisr or banded-toeplitz, which go up to"
                f" n={LARGEST_HORIZON}."
            )
        fixed = self.checked(given, request.rounds)
        missing = [each for each in self.family.searched if each.symbol not in fixed]
        values: Values = fixed
        if missing:
            search = partial(self.search_missing, missing, request, fixed)
            values = cached_parameters([self.name, _SEARCH, request, fixed], search)
        params = {each.symbol: values[each.symbol] for each in self.family.searched}
        return params, self.make(request, values)

    def _build_with(
        self, option: OptionalParameter, request: DesignRequest, given: Values
    ) -> Built:
        """The parameters and C for given parameters that include this optional one."""
        others = dict(given)
        value = int(option.parameter.checked(others.pop(option.symbol), self.name, request.rounds))
        params, factorization = option.build(self, request, value, others)
        return {**params, option.symbol: value}, factorization

    def search_missing(
        self, missing: Sequence[SearchedParameter], request: DesignRequest, given: Values
    ) -> Values:
        """The given parameters with the missing ones, chosen for the least error.

        Beyond n = 4096, where an error with normalized columns takes long, bands are chosen for
        plain columns if other parameters follow.
        """
        long = self.normalized and request.rounds > _LARGEST_NORMALIZED_SEARCH
        if long and missing[0] is SEARCHED_BANDS and len(missing) > 1:
            plain = self.family.plain_variant.search_missing(missing, request, given)
            return self.search_missing(missing[1:], request, {**given, "bands": plain["bands"]})
        judge = QuickError(request.participation, request.workload, request.objective)

        def error(values: Values) -> float:
            try:
                return judge(self.make(request, values))
            except NotRepresentable:
                return math.inf

        return search(missing, request, given, error)


def _stamped(
    variant: MechanismVariant, request: DesignRequest, stamps: int, others: Values
) -> Built:
    """C for m = ⌈n/s⌉ rounds, repeated s times.

    The block is built for the first m queries and the participations that fit into m rounds.
    """
    contract = request.participation
    size = -(-request.rounds // stamps)
    if request.objective.weights:
        raise ValueError(
            f"s (stamps) must be left out for weighted queries; got {stamps}. All blocks are built"
            " alike."
        )
    within_block = Participation.as_many_as_fit(size, contract.min_separation)
    k = min(contract.max_participations, within_block.max_participations)
    block_request = DesignRequest(
        replace(within_block, max_participations=k),
        request.workload.leading(size),
        request.objective,
    )
    params, block = variant.build(block_request, others)
    return params, Stamped(block, request.rounds)


STAMPS: Final = OptionalParameter(
    Parameter("stamps", "how often a C for n/s rounds is repeated", integer=True, letter="s"),
    _stamped,
)
_FAMILIES: dict[str, MechanismFamily] = {}


def register(*families: MechanismFamily) -> None:
    """Add mechanisms to the registry, and so to `names`, `build` and comparisons.

    Raises:
        ValueError: a name is taken.
    """
    for family in families:
        if family.name in _FAMILIES:
            raise ValueError(
                f"name (mechanism) must be new; got {family.name!r}, which is registered."
            )
        _FAMILIES[family.name] = family
    _variants.cache_clear()


def families() -> list[MechanismFamily]:
    """Every mechanism, formulas before optimizers.

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
        if path.stem not in _LOADED_WHEN_NEEDED:
            import_module(f"fedmf.mechanisms.{path.stem}")


@cache
def _variants() -> dict[str, MechanismVariant]:
    """Every variant by name, the normalized ones last."""
    variants: dict[str, MechanismVariant] = {}
    for normalized_columns in (False, True):
        for family in families():
            variant = MechanismVariant(family, normalized_columns)
            variants[variant.name] = variant
    return variants


def names() -> list[str]:
    """All mechanism names, the column-normalized variants last.

    >>> names()[:3], names()[-1].startswith("normalized-")
    (['identity', 'square-root', 'bsr'], True)
    """
    return list(_variants())


def names_to_compare(rounds: int) -> list[str]:
    """The names that a comparison of all mechanisms includes: those that take seconds at this n.

    >>> "dense" in names_to_compare(512), "dense" in names_to_compare(513)
    (True, False)
    """
    compared: list[str] = []
    for name, variant in _variants().items():
        if rounds <= variant.max_rounds_compared:
            compared.append(name)
    return compared


def canonical_name(name: str) -> str:
    """The name under which a mechanism is listed and recorded, from any spelling or alias.

    An unknown name is returned as it is.

    >>> canonical_name("BandMF"), canonical_name("banded_toeplitz")
    ('banded-toeplitz', 'banded-toeplitz')
    >>> canonical_name("normalized-dp-ftrl"), canonical_name("unknown")
    ('normalized-tree', 'unknown')
    """
    spelling = name.lower().replace("_", "-")
    normalized_columns = spelling.startswith(_NORMALIZED)
    family_name = spelling.removeprefix(_NORMALIZED)
    for variant in _variants().values():
        accepted = (variant.family.name, *variant.family.aliases)
        if variant.normalized == normalized_columns and family_name in accepted:
            return variant.name
    return name


def variant_of(name: str) -> MechanismVariant:
    """The mechanism of this name or alias.

    Raises:
        ValueError: unknown name.

    >>> variant_of("normalized-bsr").family.meaning
    'the first p coefficients of the square root'
    """
    variant = _variants().get(canonical_name(name))
    if variant is not None:
        return variant
    known = names()
    for family in families():
        known.extend(family.aliases)
    message = f"mechanism (name) must be a known one; got {name!r}."
    nearest = difflib.get_close_matches(name, known, 1, 0.5)
    if nearest:
        message += f" Did you mean {nearest[0]!r}?"
    raise ValueError(f"{message} fedmf design --all lists them.")


def accepted_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that are chosen where they are not given.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return [parameter.symbol for parameter in variant_of(name).family.searched]


def optional_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that change the construction and are never searched.

    Raises:
        ValueError: unknown name.

    >>> optional_parameters("banded-toeplitz")
    ['stamps', 'taper']
    """
    return [option.symbol for option in variant_of(name).family.optional]


def check_rounds(rounds: int) -> None:
    """Reject a horizon that no mechanism is built for.

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
    """The mechanism of this name; parameters not given minimize its error (sensitivity included).

    Args:
        name: one of `names()`.
        participation: (n, k, b).
        workload: A of n rounds; prefix sums by default.
        bands: p, where the mechanism takes it; may also be given in params.
        params: by symbol, those that the mechanism takes.
        objective: the error to minimize.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, a value out of range,
            or another workload.

    >>> build("cgd", Participation(64, 2, 32), params={"lambda": 0.9}).params
    {'lambda': 0.9}
    >>> build("bsr", Participation(64, 2, 32)).params
    {'bands': 32}
    """
    variant = variant_of(name)
    n = participation.rounds
    check_rounds(n)
    if workload is None:
        workload = prefix(n)
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds, as C has; got {workload.rounds}.")
    given: dict[str, float | int] = {}
    if bands is not None:
        given["bands"] = bands
    given.update(params or {})
    request = DesignRequest(participation, workload, objective)
    values, factorization = variant.build(request, given)
    return BuiltMechanism(variant.name, values, factorization)
