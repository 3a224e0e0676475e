"""Values that make up a run: frozen dataclasses that are checked when they are created.

The annotation of a field states its meaning and its range, such as ``Annotated[float, Field("…",
gt=0)]``. Pydantic checks it strictly, whether a value comes from Python, TOML, ``--set`` or Flower.
The reference page and ``fedmf options`` are generated from the same annotations.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Final, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import BeforeValidator, TypeAdapter
from pydantic.fields import FieldInfo

#: Stands for an empty list, where an empty string stands for the default.
EMPTY: Final = "none"
#: The largest integer, unless a field states another limit.
_LARGEST: Final = 2**31 - 1
_LIMIT: Final[Any] = pydantic.Field(le=_LARGEST)
_WITHOUT_COMMA: Final[Any] = Annotated[str, pydantic.Field(pattern="^[^,]*$")]
_STRICT: Final = pydantic.ConfigDict(strict=True, allow_inf_nan=False)


def Field(description: str = "", symbol: str = "", **limits: float) -> Any:
    """Describe a field; for ``Annotated``.

    Args:
        description: its meaning, in a sentence or less.
        symbol: its symbol in formulas.
        limits: ``gt``, ``ge``, ``lt`` and ``le``, which apply to each number of a list. Without
            ``le``, integers are below 2³¹; all numbers are finite.
    """
    return pydantic.Field(title=symbol, description=description, **limits)  # type: ignore


def strict(hint: Any) -> TypeAdapter[Any]:
    """The adapter of a type that converts nothing but integers to floats, all of them finite."""
    return TypeAdapter(hint, config=_STRICT)


def checked(adapter: TypeAdapter[Any], label: str, value: Any) -> Any:
    """Validate a value; all checks of types and ranges come through here.

    Args:
        adapter: the type and its limits, from `strict`.
        label: what an error calls the value.
        value: the value.

    Raises:
        ValueError: another type, or out of range; the message is one line.

    >>> checked(strict(tuple[int, ...]), "sizes", (8, "x"))
    Traceback (most recent call last):
    ValueError: sizes[1] must be a valid integer; got 'x'.
    """
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = "".join(f"[{index}]" for index in first["loc"])
    constraint = first["msg"].partition(" should ")[2]
    raise ValueError(f"{label}{place} must {constraint}; got {first['input']!r}.")


def check_whole(label: str, number: int, least: int = 1, most: int = _LARGEST) -> None:
    """Reject values that are not integers of a range, both ends included."""
    checked(strict(Annotated[int, pydantic.Field(ge=least, le=most)]), label, number)


@dataclass(frozen=True)
class ValueField:
    """A field of a class of values.

    Args:
        name: its name in Python.
        hint: its type.
        default: its value where none is given.
        info: its description, symbol (``title``) and limits (``metadata``).
    """

    name: str
    hint: Any
    default: Any
    info: FieldInfo

    @property
    def key(self) -> str:
        """Its name in configurations."""
        return self.name.replace("_", "-")

    @property
    def type(self) -> type:
        """The type that configurations write for it: str, int, float or bool."""
        for type_ in (bool, int, float):
            if self.hint is type_ or (_is_union(self.hint) and type_ in get_args(self.hint)):
                return type_
        return str

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        hint = self.hint
        parts = get_args(hint)
        limits = [self.info]
        if not any(hasattr(limit, "le") for limit in self.info.metadata):
            limits.append(_LIMIT)
        if parts == (int, ...):
            part = Annotated[int, BeforeValidator(_integer), *limits]
            hint = Annotated[tuple[part, ...], BeforeValidator(_split_integers)]
        elif parts == (str, ...):
            hint = Annotated[tuple[_WITHOUT_COMMA, ...], BeforeValidator(_split)]
        elif int in (hint, *parts):
            hint = Annotated[hint, *limits]
        else:
            hint = Annotated[hint, self.info]
        return strict(hint)

    def checked(self, value: Any) -> Any:
        """Validate a value for this field; lists may be strings with commas.

        Raises:
            ValueError: another type, or out of range.
        """
        label = self.name
        if self.info.title:
            label = f"{self.info.title} ({self.name})"
        return checked(self._adapter, label, value)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _split(value: Any) -> Any:
    """Turn a string with commas, or a TOML array, into a tuple."""
    if isinstance(value, str):
        return tuple(piece.strip() for piece in value.split(","))
    if isinstance(value, list):
        return tuple(value)
    return value


def _split_integers(value: Any) -> Any:
    """Turn the ways to write a list of integers, one or none among them, into a tuple."""
    if value == EMPTY:
        return ()
    if isinstance(value, int):
        return (value,)
    return _split(value)


def _integer(piece: Any) -> Any:
    if isinstance(piece, str) and re.fullmatch(r"-?[0-9]{1,10}", piece):
        return int(piece)
    return piece


class Value:
    """A frozen dataclass of one kind among several that may stand in the same place.

    Its fields are strings, numbers, Booleans, None, or tuples of strings or integers, each with a
    default, so that it can be written in a configuration table. Their descriptions become the
    arguments in the docstring of the class.

    Raises:
        ValueError: a field of another type or out of its range.
    """

    #: The name by which configurations and records choose it.
    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__doc__ and "Args:" not in cls.__doc__:
            cls.__doc__ = _with_arguments(cls, inspect.cleandoc(cls.__doc__))

    def __post_init__(self) -> None:
        for name, field in fields_of(type(self)).items():
            object.__setattr__(self, name, field.checked(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """Kind and fields, JSON-able; floats survive JSON bit for bit."""
        values: dict[str, Any] = {"kind": self.kind}
        for name in fields_of(type(self)):
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            values[name] = value
        return values


@cache
def fields_of(cls: type[Value]) -> Mapping[str, ValueField]:
    """The fields of a class of values by name."""
    fields = dict[str, ValueField]()
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            hint, info = _annotation(cls, field.name)
            fields[field.name] = ValueField(field.name, hint, field.default, info)
    return types.MappingProxyType(fields)


def _with_arguments(cls: type[Value], docstring: str) -> str:
    """The docstring of a class with the descriptions of its fields."""
    lines = list[str]()
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in _annotations(base))
    for name in names:
        _, info = _annotation(cls, name)
        if info.description:
            line = f"    {name}: {info.description}."
            lines.append(textwrap.fill(line, 100, subsequent_indent=" " * 8))
    if not lines:
        return docstring
    return "\n".join([docstring, "", "Args:", *lines, ""])


def _annotation(cls: type[Value], name: str) -> tuple[Any, FieldInfo]:
    """The type of a field and its description, which a class that narrows the type inherits."""
    bases = [base for base in cls.__mro__ if name in _annotations(base)]
    nearest = _annotations(bases[0])[name]
    if get_origin(nearest) is Annotated:
        nearest = get_args(nearest)[0]
    for base in bases:
        for part in get_args(_annotations(base)[name]):
            if isinstance(part, FieldInfo):
                return nearest, part
    return nearest, FieldInfo()


@cache
def _annotations(cls: type) -> Mapping[str, Any]:
    return inspect.get_annotations(cls, eval_str=True)


AnyValue = TypeVar("AnyValue", bound=Value)


def by_kind(*kinds: type[AnyValue]) -> dict[str, type[AnyValue]]:
    """The classes that may stand in one place, by the name of their kind."""
    return {kind.kind: kind for kind in kinds}


def value_of(kinds: Mapping[str, type[AnyValue]], description: Mapping[str, Any]) -> AnyValue:
    """Read what `Value.to_dict` wrote.

    Args:
        kinds: the classes that may stand in this place.
        description: kind and fields.

    Raises:
        ValueError: an unknown kind, fields that the kind lacks, or values out of range.
    """
    values = dict(description)
    kind = str(values.pop("kind", None))
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}; got {kind!r}.")
    known = fields_of(kinds[kind]).keys()
    if values.keys() != known - {"kind"}:
        wrong = ", ".join(sorted(values.keys() ^ known))
        raise ValueError(f"fields of {kind!r} must be all of its own; differing: {wrong}.")
    return kinds[kind](**values)


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one with dotted names.

    >>> dotted({"privacy": {"epsilon": 2.0}})
    {'privacy.epsilon': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def parse_parameters(pairs: Iterable[str]) -> dict[str, float]:
    """Read the parameters of a mechanism, each written as ``name=number``.

    Raises:
        ValueError: a pair is not written so.

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
