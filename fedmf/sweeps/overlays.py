"""Values of keys that a sweep puts over its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmf.errors import ConfigError
from fedmf.runs import Scalar
from fedmf.runs.tables import overridden, takes_key


def described(values: Mapping[str, Scalar]) -> str:
    """Keys and values for people.

    >>> described({"privacy.epsilon": 2.0, "mechanism.kind": "cgd"})
    'privacy.epsilon=2, mechanism.kind=cgd'
    """
    return ", ".join(
        f"{name}={value:g}" if type(value) is float else f"{name}={value}" for name, value in values.items()
    )


def layered(values: Mapping[str, Any], *layers: Mapping[str, Scalar]) -> dict[str, Any]:
    """A configuration with keys over it; a key that its kinds do not have is left out."""
    found = dict(values)
    for layer in layers:
        kinds = {name: value for name, value in layer.items() if name.endswith(".kind")}
        found = overridden(found, kinds)
        found |= {name: value for name, value in layer.items() if takes_key(found, name)}
    return found


def check_lists(part: str, lists: Mapping[str, Sequence[Scalar]]) -> None:
    """Refuse a key's list that is empty, or holds a value twice or one that is no scalar."""
    for name, values in lists.items():
        scalars = all(isinstance(value, str | int | float) for value in values)
        if not values or not scalars or len({*values}) < len(values):
            raise ConfigError(f"[{part}] {name} must list different values; got {list(values)}.")


def check_last(last: int) -> None:
    """Refuse a number of evaluations that count that is none."""
    if type(last) is not int or last < 1:
        raise ConfigError(f"last (evaluations that count) must be a whole number ≥ 1; got {last!r}.")
