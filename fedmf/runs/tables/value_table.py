"""A configuration table whose rows are the fields of frozen values."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Protocol, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from fedmf.errors import ConfigError
from fedmf.values import Value, hints_of

_log = logging.getLogger("fedmf")

Scalar = str | int | float | bool
#: A list of nothing, where no text would stand for the default.
_EMPTY: Final = "none"


@dataclass(frozen=True)
class Key:
    """One key of a table, for all kinds that have it.

    Args:
        table: its table.
        name: in kebab-case.
        type: of its value: str, int, float or bool.
        defaults: kind ↦ what it is where it is not set; None for nothing.
        meaning: one sentence or two; where it depends on the kind, what it is for most of them.
        is_list: whether it is text of several values with commas between.
        others: kind ↦ its meaning, where that is another.
    """

    table: str
    name: str
    type: type
    defaults: Mapping[str, Scalar | None]
    meaning: str
    is_list: bool = False
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def dotted(self) -> str:
        """As Flower and the command line name it."""
        return f"{self.table}.{self.name}"

    def meanings(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every meaning once, with the kinds that it is of; first that of all others, which are not named."""
        yield (), self.meaning
        for meaning in dict.fromkeys(self.others.values()):
            yield tuple(kind for kind, other in self.others.items() if other == meaning), meaning

    @property
    def unset(self) -> Scalar:
        """What is listed for it: it stands for a key that is not set, but for truth values.

        No NaN, which equals nothing: Flower's Ray engine refuses a run config that differs from itself.
        """
        return {str: "", int: -1, float: -math.inf, bool: False}[self.type]

    def is_set(self, value: object) -> bool:
        """Whether a value is more than the listed one; a truth value always says something."""
        if self.type is bool or type(value) is not self.type:
            return True
        return value != self.unset


class ConfigurationTable(Protocol):
    """A table of a configuration, and the value that it is."""

    @property
    def name(self) -> str:
        """As in files."""
        ...

    def takes(self, kind: str | None, key: str) -> bool:
        """Whether the kind, or the default one, has a key."""
        ...

    def keys(self) -> Iterator[Key]:
        """Every key, for all kinds."""
        ...

    def parse(self, given: Mapping[str, Any]) -> Any:
        """The value that a table describes."""
        ...

    def render(self, value: Any) -> dict[str, Scalar]:
        """The table that describes a value."""
        ...


@dataclass(frozen=True)
class ValueTable:
    """A table whose ``kind`` picks one of several frozen values; the first is the default.

    Args:
        name: of the table.
        kinds: the values, by kind.
        prefix: of every key, where the table is part of another.
    """

    name: str
    kinds: Mapping[str, type[Value]]
    prefix: str = ""

    @property
    def default(self) -> str:
        """The kind of a table that names none."""
        return next(iter(self.kinds))

    def takes(self, kind: str | None, key: str) -> bool:
        """Whether values of this kind have a field."""
        kind = self.default if kind is None else kind
        chosen = self.kinds.get(kind)
        return chosen is not None and key in self._fields(chosen)

    def _fields(self, cls: type[Value]) -> dict[str, _Field]:
        """A value's fields by key."""
        return {self.prefix + name: field for name, field in fields_of(cls).items()}

    def keys(self) -> Iterator[Key]:
        """The union over all kinds; ``kind`` first where there is a choice."""
        if len(self.kinds) > 1:
            yield Key(self.name, "kind", str, {"": self.default}, "one of " + ", ".join(self.kinds))
        merged: dict[str, dict[str, _Field]] = {}
        for kind, cls in self.kinds.items():
            for name, field in self._fields(cls).items():
                merged.setdefault(name, {})[kind] = field
        for name, fields in merged.items():
            first = next(iter(fields.values()))
            if any(field.type is not first.type for field in fields.values()):
                raise TypeError(f"[{self.name}] {name} must have one type in all kinds.")
            defaults = {kind: field.default for kind, field in fields.items()}
            ((usual, _),) = Counter(field.meaning for field in fields.values()).most_common(1)
            others = {kind: field.meaning for kind, field in fields.items() if field.meaning != usual}
            yield Key(self.name, name, first.type, defaults, usual, first.is_list, others)

    def parse(self, given: Mapping[str, Any]) -> Any:
        """The value that a table describes.

        Raises:
            ConfigError: an unknown kind, a key that the kind does not have, or a value out of range.
        """
        values = dict(given)
        kind = values.pop("kind", self.default)
        if kind not in self.kinds:
            raise ConfigError(f"[{self.name}] kind must be one of {', '.join(self.kinds)}; got {kind!r}.")
        cls = self.kinds[kind]
        known, hints = self._fields(cls), hints_of(cls)
        fields: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                self._refuse_of_others(kind, name, value)
                continue
            field = known[name].name
            try:
                fields[field] = TypeAdapter(hints[field]).validate_python(
                    _read(hints[field], value), strict=True
                )
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ConfigError(f"[{self.name}] {name} is invalid: {message}; got {value!r}.") from None
            except ValueError as error:
                raise ConfigError(f"[{self.name}] {name} {error}") from None
        try:
            return cls(**fields)
        except ValueError as error:
            raise ConfigError(f"[{self.name}] {error}") from None

    def _refuse_of_others(self, kind: str, name: str, value: object) -> None:
        """Refuse a key that only other kinds have, but for the false that Flower injects."""
        takers = [other for other, cls in self.kinds.items() if name in self._fields(cls)]
        unset = next(key.unset for key in self.keys() if key.name == name)
        if value is not False or unset is not False:
            written = "false" if unset is False else repr(unset)
            raise ConfigError(
                f"[{self.name}] {name} is a key of {', '.join(takers)}, not of kind {kind!r}. Leave it out, "
                f"or unset it: --set {self.name}.{name}={written}."
            )

    def render(self, value: Value) -> dict[str, Scalar]:
        """The table that describes a value: every field that is set."""
        table: dict[str, Scalar] = {"kind": value.kind} if len(self.kinds) > 1 else {}
        for name, field in self._fields(type(value)).items():
            scalar = _written(getattr(value, field.name))
            if scalar not in (None, ""):
                table[name] = scalar
            elif scalar != field.default:
                table[name] = _EMPTY
        return table


class _Field(NamedTuple):
    """A value's field as a key: its name in Python, the key's type, default and meaning, whether a list."""

    name: str
    type: type
    default: Scalar | None
    meaning: str
    is_list: bool


@cache
def fields_of(cls: type[Value]) -> dict[str, _Field]:
    """A value's fields by kebab-case name."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints, meanings = hints_of(cls), _meanings(cls)
    return {
        field.name.replace("_", "-"): _Field(
            field.name,
            _scalar_type(hints[field.name]),
            _written(field.default),
            meanings.get(field.name, ""),
            get_origin(hints[field.name]) is tuple,
        )
        for field in dataclasses.fields(cls)
    }


def _scalar_type(hint: Any) -> type:
    """The type of a key, for the type of a field."""
    origin = get_origin(hint)
    if origin in (Literal, tuple) or hint is str:
        return str
    if origin in (Union, types.UnionType):
        (inner,) = [part for part in get_args(hint) if part is not type(None)]
        return _scalar_type(inner)
    if hint in (bool, int, float):
        return hint
    raise TypeError(f"a field of a table must be text, a number, a truth value or a tuple; got {hint!r}.")


def _written(value: Any) -> Scalar | None:
    """A field as a key's value: tuples as text with commas."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value


def _read(hint: Any, value: Any) -> Any:
    """A key's value as the field wants it: TOML writes 8 where 8.0 is meant, and lists as text."""
    if get_origin(hint) is tuple:
        return _parts(value, get_args(hint)[0])
    if _scalar_type(hint) is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def _parts(value: Any, part: type) -> tuple[Any, ...]:
    """Text with commas, or a single number, as a tuple."""
    text = str(value) if part is int and type(value) is int else value
    if not isinstance(text, str):
        raise ValueError(f"must be text with commas; got {value!r}.")
    if part is int and text == _EMPTY:
        return ()
    pieces = [piece.strip() for piece in text.split(",")]
    if part is str:
        return tuple(pieces)
    if not all(re.fullmatch(r"[0-9]{1,10}", piece) for piece in pieces):
        raise ValueError(f"must be whole numbers separated by commas; got {value!r}.")
    return tuple(int(piece) for piece in pieces)


def _meanings(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of their arguments."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        match = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", text, flags=re.MULTILINE)
        if match is not None:
            entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", match.group(1), flags=re.MULTILINE)
            meanings |= {name: " ".join(meaning.split()) for name, meaning in entries}
    return meanings
