"""The advantage of an attacker: the guarantee as a figure that needs no formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting.rounding import at_least

#: Of 100 points of advantage, the most of a strong and of a moderate protection.
STRONG: Final = 20
MODERATE: Final = 65
_ROUNDING: Final = 1 + 2.0**-40


def gaussian_advantage(mu: float) -> float:
    """2Φ(μ/2) − 1, rounded up: the largest advantage against a μ-Gaussian private release.

    The advantage is the chance that an attacker says "used" if a user's data were used, less the
    chance if they were not. With a fair coin between both, the attacker is right with probability
    ½ + advantage/2.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Section 2.

    >>> round(gaussian_advantage(1.66604), 4)
    0.5952
    """
    return min(1.0, math.erf(mu / math.sqrt(8)) * _ROUNDING)


def approximate_advantage(epsilon: float, delta: float) -> float:
    """(e^ε − 1 + 2δ)/(e^ε + 1), rounded up: the largest advantage that (ε, δ) allows.

    With p and q the chances of "used" in both cases, p ≤ e^ε·q + δ and 1 − q ≤ e^ε·(1 − p) + δ. The
    sum of both bounds p − q.

    >>> round(approximate_advantage(1.0, 1e-5), 4)
    0.4621
    """
    balanced = math.tanh(epsilon / 2)
    return min(1.0, (balanced + delta * (1 - balanced)) * _ROUNDING)


def advantage(statement: Mapping[str, Any]) -> float:
    """The largest advantage that the guarantee of a statement allows; 1 without noise.

    The μ of a statement holds against observers who know the cohorts, and so against those who do
    not know them, too: a mixture is not easier to tell apart. The smaller of both bounds counts.
    """
    if statement["epsilon"] is None:
        return 1.0
    approximate = approximate_advantage(statement["epsilon"], statement["delta"])
    return min(approximate, gaussian_advantage(statement["mu"]))


def in_points(advantage: float) -> str:
    """An advantage of 1 as 100 points, with three digits, rounded up.

    >>> in_points(0.59516)
    '59.6'
    """
    return at_least(100 * advantage, 3)


def grade(advantage: float) -> str:
    """The protection in a word: strong, moderate or weak.

    >>> grade(0.2), grade(0.643), grade(0.651)
    ('strong', 'moderate', 'weak')
    """
    if 100 * advantage <= STRONG:
        return "strong"
    if 100 * advantage <= MODERATE:
        return "moderate"
    return "weak"
