"""Values that a run is made of: frozen, checked when they are made, and written down by themselves.

The annotation of each field says what it is and within which range: ``Annotated[float, Field("…",
gt=0)]``. One function, `Value.__post_init__`, makes fields of what Python, TOML, ``--set`` and
Flower run configs give. The reference page and ``fedmf options`` are generated from the same
annotations.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

#: A list of no numbers as text, where an empty text stands for the default.
EMPTY: Final = "none"
_LARGEST: Final = 2**31 - 1


@dataclass(frozen=True)
class Field:
    """What a field of a value is.

    Args:
        description: for people, in a sentence or less.
        symbol: that formulas give it.
        gt: numbers must be greater.
        ge: numbers must be at least this.
        lt: numbers must be less; reals are finite without it.
        le: numbers must be at most this; without it integers are below 2³¹.
    """

    description: str = ""
    symbol: str = ""
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def label(self, name: str) -> str:
        """The field in a message."""
        return f"{self.symbol} ({name})" if self.symbol else name

    def check(self, number: float) -> None:
        """Refuse a number outside of the range.

        Raises:
            ValueError: it is; the message is the end of a sentence.
        """
        whole = type(number) is int
        low = self.gt if self.ge is None else self.ge
        high = self.lt if self.le is None else self.le
        high = (_LARGEST if whole else math.inf) if high is None else high
        low = (-_LARGEST if whole else -math.inf) if low is None else low
        above = number >= low if self.ge is not None or whole else number > low
        below = number <= high if self.le is not None or whole else number < high
        if not (above and below):
            ends = "[" if self.ge is not None else "(", "]" if self.le is not None else ")"
            within = (
                f"be an integer in {low}..{high}"
                if whole
                else f"lie in {ends[0]}{low:g}, {high:g}{ends[1]}"
            )
            raise ValueError(within.replace("inf", "∞"))


@dataclass(frozen=True)
class FieldOf:
    """A field of a class of values.

    Args:
        name: in Python.
        hint: its type.
        default: where it is not given.
        about: what it is.
    """

    name: str
    hint: Any
    default: Any
    about: Field

    @property
    def key(self) -> str:
        """Its name in configurations."""
        return self.name.replace("_", "-")

    @property
    def type(self) -> type:
        """Of what configurations write for it: str, int, float or bool."""
        parts = [part for part in get_args(self.hint) if part is not types.NoneType]
        hint = parts[0] if get_origin(self.hint) in (Union, types.UnionType) else self.hint
        return hint if hint in (bool, int, float) else str

    def made(self, value: Any) -> Any:
        """The field from what was given for it.

        Raises:
            ValueError: another type, or out of range.
        """
        try:
            return _made(self.hint, self.about, value)
        except ValueError as error:
            raise ValueError(
                f"{self.about.label(self.name)} must {error}; got {value!r}."
            ) from None


def _made(hint: Any, about: Field, value: Any) -> Any:
    """A value of the type that a hint asks for; else a `ValueError` that says what it must be."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [part for part in parts if part is not types.NoneType]
        return None if value is None else _made(inner, about, value)
    if origin is Literal:
        if type(value) is not str or value not in parts:
            raise ValueError(f"be one of {', '.join(parts)}")
        return value
    if origin is tuple:
        return _list(parts[0], about, value)
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 2**1023 else math.inf
    if not (isinstance(value, float) if hint is float else type(value) is hint):
        wanted = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}[
            hint
        ]
        raise ValueError(f"be {wanted}")
    if hint in (int, float):
        about.check(value)
    return value


def _list(part: type, about: Field, value: Any) -> tuple[Any, ...]:
    """A tuple, from one, from a list, or from text with commas."""
    if isinstance(value, str):
        pieces = (
            [] if part is int and value == EMPTY else [piece.strip() for piece in value.split(",")]
        )
        if part is int and not all(re.fullmatch(r"[0-9]{1,10}", piece) for piece in pieces):
            raise ValueError("be integers separated by commas")
        value = [part(piece) for piece in pieces]
    if part is int and type(value) is int:
        value = [value]
    if not isinstance(value, tuple | list):
        raise ValueError("be a list, or text with commas")
    made = tuple(_made(part, about, piece) for piece in value)
    if any("," in piece for piece in made if isinstance(piece, str)):
        raise ValueError("list values without commas")
    return made


class Value:
    """A frozen dataclass of one kind among several that may stand in the same place.

    Its fields are strings, numbers, Booleans, None, or tuples of strings or numbers, each with a
    default, so that it can be written in a configuration table.

    Raises:
        ValueError: a field of another type or out of its range.
    """

    #: The name by which configurations and records choose it.
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields_of(type(self)).values():
            object.__setattr__(self, field.name, field.made(getattr(self, field.name)))

    def to_dict(self) -> dict[str, Any]:
        """Kind and fields, JSON-able; floats survive JSON bit for bit."""
        fields = {name: getattr(self, name) for name in fields_of(type(self))}
        lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
        return {"kind": self.kind, **fields, **lists}


@cache
def fields_of(cls: type[Value]) -> Mapping[str, FieldOf]:
    """The fields of a class of values by name; what a field is, it inherits."""
    if not dataclasses.is_dataclass(cls):
        return {}
    found = {}
    every = [inspect.get_annotations(base, eval_str=True) for base in cls.__mro__]
    for field in dataclasses.fields(cls):
        hints = [own[field.name] for own in every if field.name in own]  # its own before its bases'
        said = [part for hint in hints for part in get_args(hint)[1:] if isinstance(part, Field)]
        plain = get_args(hints[0])[0] if get_origin(hints[0]) is Annotated else hints[0]
        found[field.name] = FieldOf(field.name, plain, field.default, next(iter(said), Field()))
    return types.MappingProxyType(found)


AnyValue = TypeVar("AnyValue", bound=Value)


def by_kind(*kinds: type[AnyValue]) -> dict[str, type[AnyValue]]:
    """The classes that may stand in one place, by the name of their kind."""
    return {kind.kind: kind for kind in kinds}


def value_of(kinds: Mapping[str, type[AnyValue]], description: Mapping[str, Any]) -> AnyValue:
    """Read what `Value.to_dict` wrote.

    Args:
        kinds: what may stand in this place.
        description: kind and fields.

    Raises:
        ValueError: an unknown kind, fields that the kind lacks, or values out of range.
    """
    kind = str(description.get("kind"))
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}; got {kind!r}.")
    given = {name: value for name, value in description.items() if name != "kind"}
    known = fields_of(kinds[kind]).keys()
    if set(given) != known - {"kind"}:
        wrong = ", ".join(sorted(set(given) ^ known))
        raise ValueError(f"fields of {kind!r} must be all of its own; differing: {wrong}.")
    return kinds[kind](**given)


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted names.

    >>> dotted({"privacy": {"epsilon": 2.0}})
    {'privacy.epsilon': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= dotted(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def parse_parameters(pairs: Iterable[str]) -> dict[str, float]:
    """Parameters of a mechanism, each as ``name=number``.

    Raises:
        ValueError: a pair is none.

    >>> parse_parameters(["lambda=0.9"])
    {'lambda': 0.9}
    """
    parameters = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            parameters[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"params must be name=number; got {pair!r}.") from None
    return parameters


def check_whole(label: str, number: int, least: int = 1, most: int = _LARGEST) -> None:
    """Reject values that are not integers of a range, both ends included."""
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{label} must be an integer in {least}..{most}; got {number!r}.")
