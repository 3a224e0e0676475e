"""What all runs of a sweep cost a user together: no more than the composition of what each promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedmf.accounting import (
    DifferentialPrivacy,
    Privacy,
    at_least,
    gaussian_epsilon,
    gaussian_sigma,
    joint_multiplier,
)

#: σ of an (ε, δ) is rounded up where it is found; here it must not be above that of a run.
_DOWN: Final = 1 - 1e-9


@dataclass(frozen=True)
class ComposedPrivacy:
    """An (ε, δ) for everything that several runs on the same users release together.

    Attributes:
        runs: how many runs it is about.
        open_runs: how many of them add no noise; with one, ε is infinite.
        epsilon: of all runs; of those with noise see ``noised_epsilon``.
        delta: it holds with; at least 1 says nothing.
        noised_epsilon: of the runs with noise alone; 0 if there are none.
        rule: which theorem it is.
        adjacency: the relation under which it holds.
        public_noise: whether some run's noise comes from a public seed, so that nothing is protected.
    """

    runs: int
    open_runs: int
    epsilon: float
    delta: float
    noised_epsilon: float
    rule: str
    adjacency: str
    public_noise: bool

    def render(self) -> str:
        """One or two sentences for people."""
        noised = self.runs - self.open_runs
        promise = (
            f"cost ({at_least(self.noised_epsilon)}, {at_least(self.delta)}) for a user under "
            f"{self.adjacency} adjacency ({self.rule})"
        )
        if self.delta >= 1:
            promise = f"promise nothing: their δ add up to {at_least(self.delta)}"
        if self.open_runs == self.runs:
            text = f"Not private: none of the {self.runs} runs adds noise."
        elif self.open_runs:
            text = (
                f"Not private as a whole: {self.open_runs} of {self.runs} runs add no noise. The other "
                f"{noised} together {promise}."
            )
        else:
            text = f"All {self.runs} runs together {promise}."
        if self.public_noise:
            text += (
                " Noise here comes from public seeds, so this sweep is a simulation that protects nobody; it "
                "would cost this much with secret keys."
            )
        return text


def composed_privacy(runs: Sequence[Sequence[Privacy]]) -> ComposedPrivacy:
    """A bound on what runs cost together, each chosen in sight of what the ones before released.

    Without amplification a run is μ-GDP with μ ≤ 1/σ(ε, δ), and all of them together √(Σ max μ²), the
    maximum over what a run may be. With amplification: Σ max ε at Σ max δ.

    Args:
        runs: of each run what it may promise, several where a choice among configurations is made in sight
            of earlier runs.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Theorem 3.2 and Corollary 3.3.
        Dwork, Kenthapadi, McSherry, Mironov, Naor (2006), "Our Data, Ourselves", Theorem 1.

    >>> round(composed_privacy([[DifferentialPrivacy(epsilon=8.0)]]).epsilon, 4)
    8.0
    """
    noised = [run for run in map(_noised, runs) if run]
    open_runs = len(runs) - len(noised)
    everything = [promise for run in noised for promise in run]
    adjacencies = {promise.adjacency for promise in everything}
    if any(promise.amplified for promise in everything):
        epsilon = math.fsum(max(promise.epsilon for promise in run) for run in noised)
        delta = math.fsum(max(promise.delta for promise in run) for run in noised)
        rule = "sum of ε and of δ, since some are amplified"
    else:
        delta = min((promise.delta for promise in everything), default=0.0)
        epsilon = gaussian_epsilon(joint_multiplier(*map(least_multiplier, noised)), delta) if noised else 0.0
        rule = "Gaussian composition"
    return ComposedPrivacy(
        runs=len(runs),
        open_runs=open_runs,
        epsilon=math.inf if open_runs else epsilon,
        delta=delta,
        noised_epsilon=epsilon,
        rule=rule,
        # setting a user's updates to zero is one of the replacements: replace-one covers zero-out
        adjacency="replace-one" if adjacencies == {"replace-one"} else "zero-out",
        public_noise=any(promise.noise_seed is not None for promise in everything),
    )


def least_multiplier(promises: Sequence[DifferentialPrivacy]) -> float:
    """σ of a Gaussian mechanism at most as private as a run without amplification that makes one of these."""
    return _DOWN * min(gaussian_sigma(promise.epsilon, promise.delta) for promise in promises)


def _noised(run: Sequence[Privacy]) -> list[DifferentialPrivacy]:
    """What a run may promise; empty if it may be one without noise."""
    promises = [promise for promise in run if isinstance(promise, DifferentialPrivacy)]
    return promises if len(promises) == len(run) else []
