"""From a round's signs to a noisy share of users within the clip norm, and to the clip norm that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.noise import Domain
from fedmf.parts.clip_norm.course import Following, NormCourse
from fedmf.parts.noised_sum import NoisedSum
from fedmf.parts.part import LivePart, Stage
from fedmf.training import SIGNS, FixedPointSum


class QuantileRelease(LivePart):
    """Adds noise to the sum of a round's signs and moves the clip norm.

    With S_t the sum of the signs of users (+1 within ζ_t, −1 above, 0 for the zero vector), m the planned
    cohort size and τ₀ the standard deviation of the z of updates in units of ζ_t for a = 1, round t releases

        q_t = ½ + (S_t + (τ₀/b)·[C⁻¹z']_t)/(2m),

    z' independent of the noise of the sums. ζ_{t+1} is a function of ζ_t and the q of its block alone, which
    are the state.

    Args:
        name: of the part.
        rule: which quantile is followed how.
        own_factor: 1/b.
        stage: of the run.
    """

    def __init__(self, name: str, rule: Following, own_factor: float, stage: Stage) -> None:
        self.name, self._rule, self._size = name, rule, stage.size
        self._signs = NoisedSum(SIGNS, stage, own_factor, Domain.CLIPPING)
        self.state = NormCourse.begun(stage.clip_norm).to_dict()

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """See `LivePart.after`."""
        (signs,) = self._signs.released(t, total)
        share = 0.5 + signs / (2 * self._size)
        return NormCourse.from_dict(self.state).after(t, share, self._rule).to_dict()

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """See `LivePart.state_dict`."""
        return {"course": dict(state), "noise": self._signs.noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """See `LivePart.load_state`."""
        self._signs.load_state(saved["noise"])
        self.state = NormCourse.from_dict(saved["course"]).to_dict()

    @property
    def clip_norm(self) -> float:
        """See `LivePart.clip_norm`."""
        return float(self.state["norm"])

    def noted(self) -> Mapping[str, float]:
        """See `LivePart.noted`."""
        return {"clip_norm": self.clip_norm}
