"""The release of a round, and the protocol of update rules that make the next model of it.

`PrivateServer` makes a `RoundRelease` and passes it to its `ServerOptimizer` (`fedmf.optim`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmf.accounting.queries import SecondForm
from fedmf.matrices.second_moment import SecondMoment


@dataclass(frozen=True, eq=False)
class RoundRelease:
    """The private output of round t, divided by the planned cohort size m, with noise variances.

    Whatever an optimizer does with it is post-processing and costs no privacy.

    Args:
        mean: u_t = (Σ_u x_u + noise)/m, shape (d,).
        mean_variance: variance of the noise in an entry of `mean`: (τ₁/m)²·[C₁⁻¹C₁⁻ᵀ]_tt with τ₁
            the standard deviation of the z that enter the sum. It changes from round to round
            unless C₁ = I; 0 without noise.
        second: q_t, the second moment in the optimizer's form plus noise, packed, shape
            (`SecondMoment.size`,); None for an optimizer without `second_moment`.
        second_variance: variance of the noise in an entry of `second`: (τ₂/m)²·[C₂⁻¹C₂⁻ᵀ]_tt with
            τ₂ the standard deviation of the z that enter m times the second moment; None with
            `second`.

    Raises:
        ValueError: a shape is wrong, a variance is negative or not finite, or second and its
            variance do not come together.
    """

    mean: Tensor
    mean_variance: float
    second: Tensor | None = None
    second_variance: float | None = None

    def __post_init__(self) -> None:
        _check("u (mean)", self.mean, self.mean_variance)
        if (self.second is None) != (self.second_variance is None):
            raise ValueError(
                "q (second) and its variance must come together; got one of them alone."
            )
        if self.second is not None:
            _check("q (second)", self.second, self.second_variance)


class ServerOptimizer(Protocol):
    """A pure update rule: it makes the next parameters and state from the release of a round.

    Guarantees:
        `step` changes none of its arguments and returns tensors of its own.
    """

    @property
    def second_moment(self) -> SecondMoment | None:
        """The second moment that must be released with the mean; None for the mean alone."""
        return None

    @property
    def second_form(self) -> SecondForm:
        """The form of the second moment; it has no meaning where `second_moment` is None."""
        return "per-user"

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the state before round 0, for θ_0 of shape (d,)."""
        ...

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return θ_{t+1} and the new state.

        Args:
            t: round, from 0.
            parameters: θ_t, shape (d,).
            release: of round t.
            state: before the round.
        """
        ...


def _check(label: str, values: Tensor, variance: float | None) -> None:
    if values.ndim != 1:
        raise ValueError(f"{label} must be a flat vector; got shape {tuple(values.shape)}.")
    if variance is None or not 0 <= variance < math.inf:
        raise ValueError(
            f"variance of the noise in {label} must be finite and >= 0; got {variance}."
        )
