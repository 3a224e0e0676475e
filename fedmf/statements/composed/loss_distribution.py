"""ε of a Gaussian release together with amplified runs, by privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

from fedmf.accounting import gaussian_epsilon
from fedmf.statements.composed.costs import AmplifiedCost


class NoLosses:
    """What amplified runs add to a Gaussian release where there are none."""

    #: What ε rests on beside what that of every release does.
    assumptions: ClassVar[tuple[str, ...]] = ()

    def epsilon_with(self, mu: float, delta: float) -> float:
        """ε at δ of the runs and a μ-GDP release together, an upper bound; infinite where δ is too small.

        Args:
            mu: μ ≥ 0.
            delta: δ in (0, 1).
        """
        return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0

    def hidden(self, mus: Mapping[float, float], delta: float) -> dict[float, float] | None:
        """ε beside each of these μ, by the same keys, while cohorts stay secret; None without such runs."""
        del mus, delta


class ComposedLosses(NoLosses):
    """Amplified runs together, to be composed with a Gaussian release of any μ.

    Each run is dominated by a pair that was fixed before any of them began, so together they are dominated by
    the product of the pairs, whose loss is the sum of independent losses: docs/theory/composition.md.

    Args:
        runs: of secret cohorts, each drawn with a key of its own; at least one.

    References:
        Zhu, Dong, Wang (2022), "Optimal Accounting of Differential Privacy via Characteristic Function",
        Theorem 10. Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), "Connect the Dots". Kairouz, Oh,
        Viswanath (2015), "The Composition Theorem for Differential Privacy", where (ε, δ) alone is known.

    >>> from fedmf.statements.composed.costs import StatedCost
    >>> both = ComposedLosses([StatedCost(1.0, 1e-6)])
    >>> round(both.epsilon_with(0.0, 1e-5), 2), both.epsilon_with(0.0, 1e-7)
    (1.0, inf)
    """

    assumptions: ClassVar[tuple[str, ...]] = (
        "who took part in which round of an amplified run stays secret, and no amplified run went on while "
        "another run that saw its releases, or whose releases it saw, did",
    )

    def __init__(self, runs: Sequence[AmplifiedCost]) -> None:
        self._interval = min(run.resolution for run in runs)
        distributions = (run.loss_distribution(self._interval) for run in runs)
        self._together: Any = reduce(lambda one, other: one.compose(other), distributions)
        #: No smaller δ has a finite ε.
        self.least_delta = math.fsum(run.least_delta for run in runs)

    def epsilon_with(self, mu: float, delta: float) -> float:
        """See `NoLosses.epsilon_with`."""
        from dp_accounting.pld import privacy_loss_distribution

        together = self._together
        if mu > 0:
            gaussian = privacy_loss_distribution.from_gaussian_mechanism(
                (1 - 2.0**-50) / mu, value_discretization_interval=self._interval
            )
            together = together.compose(gaussian)
        return float(together.get_epsilon_for_delta(delta))

    def hidden(self, mus: Mapping[float, float], delta: float) -> dict[float, float]:
        """See `NoLosses.hidden`."""
        distinct = {mu: self.epsilon_with(mu, delta) for mu in {*mus.values()}}
        return {key: distinct[mu] for key, mu in mus.items()}
