"""Numbers of a guarantee as text: rounded so that what is printed is never more than what was proved."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction


def at_least(value: float, digits: int = 6) -> str:
    """The number rounded up: for ε, δ, μ, ρ and sensitivities, and for noise that somebody still has to add.

    What is rounded is the shortest decimal that stands for the double, so that 1e-05 stays what was typed.

    Args:
        value: a number, infinity included.
        digits: of its significant part.

    Guarantees:
        The text, read as a decimal or as a double, is not below the value.

    >>> at_least(2.0000004), at_least(8.0), at_least(1e-05), at_least(0.333333), at_least(math.inf)
    ('2.00001', '8', '1e-05', '0.333333', 'infinite')
    """
    return _text(value, digits, ROUND_CEILING)


def at_most(value: float, digits: int = 6) -> str:
    """The number rounded down: for noise that a claim says was added, and for lower bounds.

    Guarantees:
        The text, read as a decimal or as a double, is not above the value.

    >>> at_most(1.9999996), at_most(0.5), at_most(0.60023, digits=3)
    ('1.99999', '0.5', '0.6')
    """
    return _text(value, digits, ROUND_FLOOR)


def double_at_least(exact: Fraction) -> float:
    """The smallest double that is not below a fraction; infinity where there is none.

    >>> double_at_least(Fraction(1, 3)) > Fraction(1, 3) > math.nextafter(1 / 3, 0)
    True
    """
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _text(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return "infinite" if value > 0 else str(float(value))
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    text = f"{float(rounded):.{digits}g}"
    return text if Decimal(text) == rounded else str(rounded)  # so many digits survive all but tiny doubles
