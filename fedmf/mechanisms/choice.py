"""The choice of a mechanism: a name with parameters, or a factorization of the user's own.

Runs, streams and comparisons hold a `MechanismChoice` and build it for their participation
contract. A choice by name goes to the registry; a given factorization is used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmf.matrices.factorization import BuiltMechanism, Factorization, factorization_from_dict
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.registry import SearchedParameter, Values, build, names, variant_of
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.participation import Participation

_GIVEN = "given"


@dataclass(frozen=True)
class NamedMechanism:
    """A mechanism by name, with fixed parameters; all other parameters are optimized.

    Args:
        kind: one of `names()`.
        params: by symbol, including bands; integers may be given as floats.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, or a value of the
            wrong type.

    >>> NamedMechanism("bifr", {"bands": 8}).to_dict()
    {'kind': 'bifr', 'bands': 8}
    """

    kind: str
    params: Mapping[str, float | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        variant = variant_of(self.kind)
        object.__setattr__(self, "kind", variant.name)
        object.__setattr__(self, "params", variant.checked(self.params, rounds=None))

    def __hash__(self) -> int:
        return hash((self.kind, frozenset(self.params.items())))

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    @property
    def searched(self) -> tuple[SearchedParameter, ...]:
        """The parameters that are not given."""
        searched = variant_of(self.kind).family.searched
        return tuple(each for each in searched if each.symbol not in self.params)

    @property
    def effort(self) -> int:
        """The relative time of `build`.

        0 for a formula, 1 for a search of its parameters, 2 for an optimizer of a few coefficients,
        3 for an optimizer of all entries of C.
        """
        family = variant_of(self.kind).family
        if family.entrywise:
            return 3
        if family.optimized:
            return 2
        return min(1, len(self.searched))

    def with_parameters(self, values: Values) -> NamedMechanism:
        """A copy with these parameters given too."""
        return NamedMechanism(self.kind, {**self.params, **values})

    def build(
        self,
        participation: Participation,
        workload: ToeplitzWorkload | None = None,
        objective: Objective = RMSE,
    ) -> BuiltMechanism:
        """The mechanism for a participation contract, as `registry.build` makes it."""
        return build(self.kind, participation, workload, params=self.params, objective=objective)

    def to_dict(self) -> dict[str, Any]:
        """{"kind": name, symbol: value, …}."""
        return {"kind": self.kind, **self.params}


@dataclass(frozen=True, eq=False)
class GivenFactorization:
    """A factorization of the user's own, for exactly its number of rounds.

    Sensitivity, error and noise follow from the coefficients that `Factorization.to_dict` writes
    and `factorization_from_dict` reads. Anything else that the object states about itself is
    ignored.

    Args:
        factorization: C.
        name: its name in tables and records; not the name of a mechanism.

    Raises:
        ValueError: C is no factorization that can be stored by its coefficients, or the name is
            taken.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> GivenFactorization(Toeplitz([1.0, 0.5], 4)).to_dict()["factorization"]["coefficients"]
    [1.0, 0.5]
    """

    factorization: Factorization
    name: str = "own"

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not self.name.strip() or self.name in names():
            raise ValueError(
                "name (of a given C) must be printable and not the name of a mechanism; got"
                f" {self.name!r}."
            )
        object.__setattr__(self, "factorization", _stored(self.factorization))

    @property
    def params(self) -> Values:
        """No parameters."""
        return {}

    @property
    def searched(self) -> tuple[SearchedParameter, ...]:
        """No parameters to search."""
        return ()

    @property
    def effort(self) -> int:
        """The relative time of `build`, which has nothing to compute."""
        return 0

    def with_parameters(self, values: Values) -> GivenFactorization:
        """This choice, which takes no parameters.

        Raises:
            ValueError: a parameter is given.
        """
        for symbol, value in values.items():
            raise ValueError(
                f"{symbol} (parameter) must be omitted: {self.name} takes none; got"
                f" {symbol}={value}."
            )
        return self

    def build(
        self,
        participation: Participation,
        workload: ToeplitzWorkload | None = None,
        objective: Objective = RMSE,
    ) -> BuiltMechanism:
        """C as it was given, for any workload of its horizon and any objective."""
        horizons = [participation.rounds]
        if workload is not None:
            horizons.append(workload.rounds)
        for rounds in horizons:
            if rounds != self.factorization.rounds:
                raise ValueError(
                    f"n (rounds) must be as for the given C, {self.factorization.rounds}; got"
                    f" {rounds}. Construct C for this number of rounds."
                )
        return BuiltMechanism(self.name, {}, self.factorization)

    def to_dict(self) -> dict[str, Any]:
        """{"kind": "given", "name", "factorization"}."""
        return {"kind": _GIVEN, "name": self.name, "factorization": self.factorization.to_dict()}


#: A mechanism before it is built for a participation contract.
MechanismChoice = NamedMechanism | GivenFactorization


def mechanism_choice_from_dict(description: Mapping[str, Any]) -> MechanismChoice:
    """Read a choice from the dictionary that its `to_dict` wrote.

    Raises:
        ValueError: the dictionary does not describe a choice.

    >>> mechanism_choice_from_dict({"kind": "cgd", "lambda": 0.9})
    NamedMechanism(kind='cgd', params={'lambda': 0.9})
    """
    match dict(description):
        case {
            "kind": "given",
            "name": str(name),
            "factorization": dict(coefficients),
            **rest,
        } if not rest:
            return GivenFactorization(factorization_from_dict(coefficients), name)
        case {"kind": str(kind), **params} if kind != _GIVEN:
            return NamedMechanism(kind, params)
        case other:
            raise ValueError(
                "mechanism must be a kind with its parameters, or given with name and"
                f" factorization; got {other.get('kind')!r} with {sorted(other)}."
            )


def _stored(factorization: Factorization) -> Factorization:
    """A factorization rebuilt from its description alone, if that reproduces it exactly."""
    kind = type(factorization).__name__
    if not isinstance(factorization, Factorization):
        raise ValueError(
            f"C (factorization) must be a Factorization; got {kind}. Wrap it, as in Dense."
        )
    try:
        description = factorization.to_dict()
        stored = factorization_from_dict(description)
        exact = stored.to_dict() == description and stored.rounds == factorization.rounds
    except Exception as error:
        raise ValueError(
            f"C (factorization) must be one that its to_dict describes; got {kind}: "
            f"{type(error).__name__} ({' '.join(str(error).split())})."
        ) from error
    if not exact:
        raise ValueError(
            f"C (factorization) must be one that its to_dict describes exactly; got {kind}, which"
            " differs once it is read back. Give its coefficients as Toeplitz, Banded or Dense."
        )
    return stored
