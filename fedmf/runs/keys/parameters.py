"""Numbers by name inside one string, as flat configuration files need them."""

from __future__ import annotations

import math

from fedmf.errors import ConfigError

__all__ = ["parse_parameters"]


def parse_parameters(text: str) -> dict[str, float]:
    """Mechanism parameters ``name=number``, separated by commas.

    >>> parse_parameters("lambda=0.9, c=-0.01")
    {'lambda': 0.9, 'c': -0.01}
    """
    parameters: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not name.strip() or not math.isfinite(number):
            raise ConfigError(f"mechanism parameters must read name=number; got {part!r}.")
        if name.strip() in parameters:
            raise ConfigError(f"mechanism parameters must be given once each; got {name.strip()!r} twice.")
        parameters[name.strip()] = number
    return parameters
