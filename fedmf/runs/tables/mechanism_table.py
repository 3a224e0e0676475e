"""The table of mechanisms: its keys are the parameters of all families, and how the matrices are used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import GivenFactorization, NamedMechanism
from fedmf.mechanisms.registry import accepted_parameters, names, optional_parameters, own_name, parameters
from fedmf.runs.mechanism import NoiseMechanism
from fedmf.runs.tables.value_table import Key, Scalar, ValueTable
from fedmf.values import Value, by_kind

_DEFAULT: Final = "banded-toeplitz"


@dataclass(frozen=True)
class _Use(Value):
    """What a mechanism's matrices are made for.

    Args:
        workload: A₁ that C is made for: prefix, momentum:β, window:w, …; "auto" for what the optimizer
            releases.
        objective: which error of the released queries C minimises: rmse, max, last or weights:w1,w2,….
        second_workload: A₂ of a second moment; "auto" for the optimizer's average.
        second_moment_importance: w; above 0 the balance of both noises, and whether they share one matrix,
            minimise the predicted error with the second moment's weighted by w.
    """

    kind = "use"
    workload: str = "prefix"
    objective: str = "rmse"
    second_workload: str = "auto"
    second_moment_importance: float = 0.0


@dataclass(frozen=True)
class MechanismTable:
    """[mechanism]: ``kind`` is a mechanism's name, its parameters are keys; those not set are optimised.

    Args:
        name: of the table.
    """

    name: str

    @property
    def kinds(self) -> list[str]:
        """The names of mechanisms."""
        return names()

    @property
    def _use(self) -> ValueTable:
        return ValueTable(self.name, by_kind(_Use))

    def takes(self, kind: str | None, key: str) -> bool:
        """Whether a mechanism has a parameter."""
        name = _DEFAULT if kind is None else own_name(kind)
        return name in names() and key in (*accepted_parameters(name), *optional_parameters(name))

    def keys(self) -> Iterator[Key]:
        """Kind, the parameters of all mechanisms, and how the matrices are used."""
        meaning = "a mechanism's name; docs/theory/mechanisms.md lists them"
        yield Key(self.name, "kind", str, {"": _DEFAULT}, meaning)
        for symbol, parameter in parameters().items():
            takers = {name: None for name in names() if self.takes(name, symbol)}
            yield Key(self.name, symbol, int if parameter.integer else float, takers, parameter.meaning)
        yield from self._use.keys()

    def parse(self, given: Mapping[str, Any]) -> NoiseMechanism:
        """The mechanism that a table describes.

        Raises:
            ConfigError: an unknown name, a parameter that the mechanism does not take, or a value out of
                range.
        """
        rest = dict(given)
        kind = rest.pop("kind", _DEFAULT)
        if not isinstance(kind, str):
            raise ConfigError(f"[{self.name}] kind must be the name of a mechanism; got {kind!r}.")
        asked = {name: rest.pop(name) for name in list(rest) if self._use.takes(None, name)}
        for name, value in rest.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"[{self.name}] {name} must be a number; got {value!r}.")
        try:
            choice = NamedMechanism(kind, rest)
            used = {field: getattr(self._use.parse(asked), field) for field in _fields(_Use)}
            return NoiseMechanism(choice, **used)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"[{self.name}] {error}") from None

    def render(self, value: NoiseMechanism) -> dict[str, Scalar]:
        """The table that describes a mechanism; a factorization has no key but its kind."""
        choice = value.choice
        named: dict[str, Scalar] = (
            {"kind": "given", "name": choice.name}
            if isinstance(choice, GivenFactorization)
            else {"kind": choice.name, **choice.params}
        )
        use = _Use(**{field: getattr(value, field) for field in _fields(_Use)})
        return {**named, **self._use.render(use)}


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
