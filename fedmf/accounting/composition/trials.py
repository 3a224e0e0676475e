"""How often something is tried before the best is released: laws of a random number of trials."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import ClassVar, Final, final

from fedmf.values import Value, by_kind

#: How far the law of what is drawn is from that of K at most, in total variation.
DRAWING: Final = 1e-45
_BITS: Final = 256
_DIGITS: Final = Context(prec=80)
_LEFT: Final = Decimal("1e-50")


@dataclass(frozen=True)
class Trials(Value):
    """The law of the number of trials K; abstract.

    Args:
        mean: E[K].
    """

    mean: float = 10.0

    @abstractmethod
    def probabilities(self) -> Iterator[Decimal]:
        """P[K = 0], P[K = 1], … to 70 digits or more, without an end."""

    def number(self, bits: int) -> int:
        """K from 256 random bits.

        Guarantees:
            Where the bits are uniform, the law of the result is within `DRAWING` of that of K.

        >>> NegativeBinomialTrials(mean=2.0, shape=1.0).number(int(0.6 * 2**256))
        2
        """
        uniform = _DIGITS.divide(Decimal(bits + 1), Decimal(2**_BITS))
        wanted, reached, count = min(uniform, _DIGITS.subtract(Decimal(1), _LEFT)), Decimal(0), -1
        for probability in self.probabilities():
            count += 1
            reached = _DIGITS.add(reached, probability)
            if reached >= wanted:
                break
        return count


@final
@dataclass(frozen=True)
class NegativeBinomialTrials(Trials):
    """Truncated negative binomial: P[K = k] ∝ (1 − γ)^k·Γ(k + η)/k!, k ≥ 1.

    η = 1 is geometric, η = 0 logarithmic; a smaller η costs less privacy at the same mean and spreads K more.

    Args:
        shape: η ≥ 0.

    Raises:
        ValueError: a mean that is not above 1, or a shape out of range.

    References:
        Papernot, Steinke (2022), "Hyperparameter Tuning with Renyi Differential Privacy", Definition 1.

    >>> geometric = NegativeBinomialTrials(mean=4.0, shape=1.0)
    >>> round(geometric.gamma, 12), [round(float(p), 4) for p, _ in zip(geometric.probabilities(), range(4))]
    (0.25, [0.0, 0.25, 0.1875, 0.1406])
    """

    kind: ClassVar[str] = "negative-binomial"

    shape: float = 1.0

    def __post_init__(self) -> None:
        if not 1 < self.mean <= 1e4:
            raise ValueError(
                f"E[K] (mean number of trials) must be above 1, at most 10000; got {self.mean!r}."
            )
        if not 0 <= self.shape <= 100:
            raise ValueError(f"η (shape of the number of trials) must lie in 0..100; got {self.shape!r}.")

    @cached_property
    def gamma(self) -> float:
        """γ in (0, 1), by bisection in log γ; the mean falls with it."""
        low, high = -100.0, -1e-12
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_at(middle) > self.mean else (low, middle)
        return math.exp(high)

    def _mean_at(self, log_gamma: float) -> float:
        odds = math.expm1(-log_gamma)  # (1 − γ)/γ
        return (
            odds / -log_gamma if self.shape == 0 else odds * self.shape / -math.expm1(self.shape * log_gamma)
        )

    def probabilities(self) -> Iterator[Decimal]:
        """See `Trials.probabilities`."""
        yield Decimal(0)
        d, eta, gamma = _DIGITS, Decimal(self.shape), Decimal(self.gamma)
        fail, rate = d.subtract(Decimal(1), gamma), d.minus(d.ln(gamma))
        scale = rate if eta == 0 else d.divide(d.subtract(d.exp(d.multiply(eta, rate)), Decimal(1)), eta)
        term, k = d.divide(fail, scale), 1
        while True:
            yield term
            term = d.divide(d.multiply(d.multiply(term, fail), d.add(eta, Decimal(k))), Decimal(k + 1))
            k += 1


@final
@dataclass(frozen=True)
class PoissonTrials(Trials):
    """Poisson: K = 0 is possible, and then nothing is released.

    Raises:
        ValueError: a mean out of range.

    References:
        Papernot, Steinke (2022), Theorem 6.

    >>> [round(float(p), 4) for p, _ in zip(PoissonTrials(mean=1.0).probabilities(), range(3))]
    [0.3679, 0.3679, 0.1839]
    """

    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.mean <= 1e4:
            raise ValueError(f"E[K] (mean number of trials) must lie in (0, 10000]; got {self.mean!r}.")

    def probabilities(self) -> Iterator[Decimal]:
        """See `Trials.probabilities`."""
        d, mean = _DIGITS, Decimal(self.mean)
        term, k = d.exp(d.minus(mean)), 0
        while True:
            yield term
            k += 1
            term = d.divide(d.multiply(term, mean), Decimal(k))


TRIALS: Final = by_kind(NegativeBinomialTrials, PoissonTrials)
