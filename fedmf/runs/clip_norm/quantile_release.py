"""From a round's signs to a noisy share of users within the clip norm, and to the clip norm that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.parts import NormCourse, QuantileClipping
from fedmf.statements import Plan
from fedmf.training import CountedSum, FixedPointSum


class QuantileRelease:
    """Adds noise to the sum of a round's signs and moves the clip norm.

    With S_t the sum of the signs of users (+1 within ζ_t, −1 above, 0 for the zero vector), m the planned
    cohort size and τ₀ the standard deviation of the z of updates in units of ζ_t for a = 1, round t releases

        q_t = ½ + (S_t + (τ₀/b)·[C⁻¹z']_t)/(2m),

    z' independent of the noise of the sums. ζ_{t+1} is a function of ζ_t and the q of its block alone.

    Args:
        plan: of a run whose clip norm follows a quantile.
        keys: which key makes which row; those of the sums.

    Attributes:
        course: ζ up to the next round.
    """

    def __init__(self, plan: Plan, keys: KeySchedule) -> None:
        assert isinstance(plan.clipping, QuantileClipping)
        self._rule, self._size = plan.clipping, plan.cohorts.size
        self._std = plan.relative_noise_std * self._rule.sign_factor
        inverse = plan.mechanism.factorization.recurrence()
        source = GaussianSource(keys, 1, Domain.CLIPPING)
        self.noise = NoiseStream(source, inverse, plan.participation.rounds)
        self.course = NormCourse.begun(plan.privacy.clip_norm)

    def after(self, t: int, total: FixedPointSum) -> NormCourse:
        """The course once round t is released; nothing is kept of it here, since the round may not be."""
        assert isinstance(total, CountedSum)
        noisy = torch.tensor([float(total.signs)], dtype=torch.float64)
        self.noise.seek(t)
        if self._std > 0:
            self.noise.add_(noisy, self._std)
        else:
            self.noise.skip()
        return self.course.after(t, 0.5 + float(noisy) / (2 * self._size), self._rule)

    def state_dict(self, course: NormCourse) -> dict[str, Any]:
        """A course with the position and identity of the noise, JSON-able."""
        return {"course": course.to_dict(), "noise": self.noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made.

        Raises:
            ValueError: it was made with other noise.
        """
        if self._std > 0:
            self.noise.load_state(saved["noise"])
        self.course = NormCourse.from_dict(saved["course"])
