"""Values that a run is made of: frozen, validated when they are made, and written down by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints


class Value:
    """A frozen dataclass of one kind among several that may stand in the same place.

    Its fields are text, numbers, truth values, None, or tuples of text or numbers, each with a default, so
    that it can be written in a configuration table. ``__post_init__`` refuses what is out of range.
    """

    #: The name by which configurations and records choose it.
    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Kind and fields, JSON-able; floats survive JSON bit for bit."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            "kind": self.kind,
            **_plain(fields),
        }


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


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
        ValueError: an unknown kind, fields that are not those of the kind, or values out of range.
    """
    kind = str(description.get("kind"))
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}; got {kind!r}.")
    given = {name: value for name, value in description.items() if name != "kind"}
    known = {field.name for field in dataclasses.fields(kinds[kind])}  # type: ignore[arg-type]
    if set(given) != known:
        wrong = ", ".join(sorted(set(given) ^ known))
        raise ValueError(f"fields of {kind!r} must be all of its own; differing: {wrong}.")
    return kinds[kind](
        **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    )


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


@cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """The evaluated annotations of a class, evaluated once."""
    return MappingProxyType(get_type_hints(cls))


def check_choices(value: Value) -> None:
    """Refuse a field that is none of the names its annotation, a `Literal`, lists."""
    for name, annotation in hints_of(type(value)).items():
        if get_origin(annotation) is Literal and getattr(value, name) not in get_args(annotation):
            choices = ", ".join(get_args(annotation))
            raise ValueError(f"{name} must be one of {choices}; got {getattr(value, name)!r}.")


def check_whole(label: str, number: int, least: int = 1, most: int = 2**31 - 1) -> None:
    """Refuse what is not a whole number of a range, both ends included."""
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{label} must be a whole number in {least}..{most}; got {number!r}.")


def check_sizes(label: str, sizes: tuple[int, ...]) -> None:
    """Refuse what is not a tuple of positive whole numbers."""
    if not (isinstance(sizes, tuple) and all(type(size) is int and 0 < size < 2**31 for size in sizes)):
        raise ValueError(f"{label} must be a tuple of positive whole numbers; got {sizes!r}.")
