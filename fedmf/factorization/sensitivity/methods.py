"""The order in which sensitivity is bounded, cheapest method first, for whatever is released from one user.

Every value is a proven upper bound. It is *exact* when the method is always attained, or when a pattern was
found that attains it up to 1e-12 (relative), the rounding error of the sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.sensitivity.separated import best_separated_sum, count_patterns, pattern_layers
from fedmf.participation import Participation
from fedmf.typing import Vector

Kind = Literal["exact", "upper_bound"]
ROUNDING = 1e-12
_LARGEST_ENUMERATED = 2048
_LARGEST_GRAM = 10_240


class SensitivityNotExact(ValueError):
    """The exact sensitivity is not known for this factorization and participation; a bound may be."""


@dataclass(frozen=True)
class Sensitivity:
    """sens_{k,b}(C) for clip norm 1.

    Args:
        value: the sensitivity, or a bound above it.
        kind: whether the value is attained by some user.
        case: which theorem or algorithm gave it.
    """

    value: float
    kind: Kind
    case: str


class Released(ABC):
    """What is released, asked how far one user who keeps to (n, k, b) moves it."""

    #: (n, k, b).
    participation: Participation
    #: What `case` says after the name of the dynamic program.
    source: str
    #: What it is called in refusals, and what to use instead where it is too long.
    called: str
    instead: str
    #: How many patterns are enumerated at most.
    most_patterns = 200_000

    @property
    @abstractmethod
    def bands(self) -> int:
        """Participations at least so many rounds apart move orthogonal parts."""

    @property
    @abstractmethod
    def enveloped(self) -> bool:
        """Whether `by_structure` bounds it at every horizon."""

    @abstractmethod
    def squares(self) -> Vector:
        """The squared movement of one participation in each round, shape (n,)."""

    @abstractmethod
    def by_structure(self) -> Iterator[Sensitivity]:
        """Bounds from the form of the matrices, without a Gram matrix."""

    @abstractmethod
    def by_enumeration(self) -> Sensitivity:
        """The bound over every pattern."""

    @abstractmethod
    def by_rows(self) -> Sensitivity:
        """A bound from the Gram matrix where there are too many patterns."""


def methods(released: Released) -> Iterator[Sensitivity]:
    """The methods that apply, cheapest first; later ones run only if they are asked for.

    Raises:
        SensitivityNotExact: no further method takes a horizon this long, and none before bounded it.
    """
    contract = released.participation
    n, k, b = contract.rounds, contract.max_participations, contract.min_separation
    if k == 1 or released.bands <= b:
        value = float(np.sqrt(best_separated_sum(released.squares(), k, b)))
        reason = "single participation" if k == 1 else "columns b apart orthogonal (p <= b)"
        yield Sensitivity(value, "exact", f"{reason}: dynamic program{released.source}")
        return
    yield from released.by_structure()
    if n <= _LARGEST_ENUMERATED and count_patterns(n, k, b) <= released.most_patterns:
        yield released.by_enumeration()
    elif n <= _LARGEST_GRAM:
        yield released.by_rows()
    elif not released.enveloped:
        raise SensitivityNotExact(
            f"n (rounds) must be at most {_LARGEST_GRAM} to bound the {released.called}; got {n}. "
            f"Use {released.instead}."
        )


def tightest(released: Released) -> Sensitivity:
    """The first exact value, else the smallest of the bounds."""
    bounds: list[Sensitivity] = []
    for bound in methods(released):
        if bound.kind == "exact":
            return bound
        bounds.append(bound)
    return min(bounds, key=lambda bound: bound.value)


def kind_of(upper: float, attained: float) -> Kind:
    """Exact if some user attains the bound up to the rounding of the sums."""
    return "exact" if upper <= attained * (1 + ROUNDING) else "upper_bound"


def over_patterns(
    weigh: Callable[[NDArray[np.int64]], NDArray[np.float64]], participation: Participation
) -> list[tuple[float, NDArray[np.int64]]]:
    """The largest of several quantities over every pattern, each with the first pattern that has it.

    Args:
        weigh: for patterns of one size, shape (patterns, size), the quantities, shape (quantities, patterns).
        participation: (n, k, b).

    >>> over_patterns(lambda layer: layer.sum(axis=1)[None, :].astype(float), Participation(4, 2, 2))
    [(4.0, array([1, 3]))]
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    largest: list[tuple[float, NDArray[np.int64]]] = []
    for layer in pattern_layers(n, k, b):
        weights = weigh(layer)
        tops = [(float(row[at]), layer[at]) for row, at in zip(weights, weights.argmax(axis=1), strict=True)]
        largest = [max(pair, key=lambda top: top[0]) for pair in zip(largest or tops, tops, strict=True)]
    return largest
