"""Conservative rounding: searched and printed values never claim more privacy than was proved.

The accountants search with `least_accepted` and `least_near`, statements print with `at_least` and
`at_most`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cache


def at_least(value: float, digits: int = 6) -> str:
    """The number rounded up, as text: for ε, δ, μ, ρ, sensitivities and noise yet to be added.

    The shortest decimal of the double is rounded, so that 1e-05 stays as it was typed.

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
    """The number rounded down, as text: for noise that a claim says was added, and lower bounds.

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
    if Fraction(nearest) >= exact:
        return nearest
    return math.nextafter(nearest, math.inf)


def least_accepted(accept: Callable[[float], bool]) -> float:
    """The smallest positive double that `accept` (false below, true above) takes.

    It is infinity if `accept` takes none. Bisection of exponents from 1 with doubling steps, and
    then of doubles: any returned value was accepted, so that the error of a search is on the safe
    side.

    >>> root = least_accepted(lambda x: x * x >= 2)
    >>> root**2 >= 2 > math.nextafter(root, 0) ** 2
    True
    """
    step = 1.0
    if accept(1.0):
        low = 0.5
        high = 1.0
        while low > 0 and accept(low):
            high = low
            low = low * 2.0**-step
            step = 2 * step
    else:
        low = 1.0
        high = 2.0
        while not accept(high):
            if high == sys.float_info.max:
                return math.inf
            low = high
            high = min(high * 2.0**step, sys.float_info.max)
            step = min(2 * step, 512)
    while True:
        middle = low + (high - low) / 2
        if low > 0 and high > 2 * low:
            middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            return high
        if accept(middle):
            high = middle
        else:
            low = middle


def least_near(
    excess: Callable[[float], float], high: float, step: float, precision: float
) -> float:
    """A positive x with excess(x) ≤ 0 near the root of a decreasing function.

    Brent's method on log x, and then steps outwards until the value is accepted: for functions that
    take long, where the last digits of x do not matter.

    Args:
        excess: decreasing, finite.
        high: where the search begins; raised while excess(high) > 0.
        step: relative width of the first bracket.
        precision: relative distance of x from the root.
    """
    from scipy.optimize import brentq

    excess = cache(excess)
    while excess(high) > 0:
        high *= 1.0 + step
    low = high / (1.0 + step)
    while excess(low) <= 0:
        high = low
        low = low / (1.0 + 2 * step)
        step = 2 * step
    root = brentq(
        lambda x: excess(high * math.exp(x)), math.log(low / high), 0.0, xtol=precision / 4
    )
    accepted = high * math.exp(float(root))  # type: ignore[arg-type]
    while excess(accepted) > 0:
        accepted *= 1.0 + precision / 2
    return accepted


def _text(value: float, digits: int, rounding: str) -> str:
    if value == math.inf:
        return "infinite"
    if not math.isfinite(value):
        return str(float(value))
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    text = f"{float(rounded):.{digits}g}"
    if Decimal(text) != rounded:  # tiny doubles have fewer digits
        return str(rounded)
    return text
