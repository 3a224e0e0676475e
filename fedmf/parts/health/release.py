"""From a round's counts to noisy means of blocks, and to a word about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmf.noise import Domain
from fedmf.parts.health.power import Power
from fedmf.parts.noised_sum import NoisedSum
from fedmf.parts.part import LivePart, Stage
from fedmf.training import PRESENT, SIGNS, FixedPointSum

#: ``since``: rounds before it are in no total; ``begun``: that of the block, ``before``: totals up to it.
_START = {
    "since": 0,
    "rounds": 0,
    "contributions": 0.0,
    "signs": 0.0,
    "begun": 0,
    "before": [0.0, 0.0],
    "shown": None,
}


class HealthRelease(LivePart):
    """Adds noise to both counts of every round and keeps their totals.

    Round t releases N_t + (τ₀/b₁)·[C⁻¹z']_t and S_t + (τ₀/b₂)·[C⁻¹z'']_t, with N_t the number of users whose
    contribution is not zero, S_t the sum of their signs (+1 within ζ_t, −1 above), z' and z'' independent of
    each other and of all other noise. Totals and means of blocks are functions of what was released. Rounds
    whose work was lost, since no checkpoint holds it, are in neither: both begin anew behind them.

    Args:
        name: of the part.
        columns: names of what it shows: mean number a round, its error, share clipped.
        factors: 1/b₁ and 1/b₂.
        every: B, rounds of a block.
        stage: of the run.

    Attributes:
        power: what the counts of contributions can tell.
    """

    def __init__(
        self, name: str, columns: Sequence[str], factors: tuple[float, float], every: int, stage: Stage
    ) -> None:
        self.name, self._columns, self._every = name, tuple(columns), every
        for_present, for_signs = factors
        self._present = NoisedSum(PRESENT, stage, for_present, Domain.of_part("health"))
        self._signs = NoisedSum(SIGNS, stage, for_signs, Domain.of_part("health signs"))
        self.power = Power.of(stage.factorization, stage.size, stage.noise_std * for_present)
        self.state: Mapping[str, Any] = dict(_START)

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """See `LivePart.after`."""
        (present,), (signs,) = self._present.released(t, total), self._signs.released(t, total)
        state = dict(self.state)
        if t != state["rounds"]:
            state |= {**_START, "since": t, "begun": t, "shown": state["shown"]}
        state["rounds"] = rounds = t + 1
        state["contributions"] += present
        state["signs"] += signs
        if rounds % self._every == 0:
            begun, (arrived, signed) = state["begun"], state["before"]
            arrived, signed = state["contributions"] - arrived, state["signs"] - signed
            mean, error = arrived / (rounds - begun), self.power.error(begun, rounds)
            clipped = (1 - signed / arrived) / 2 if mean > 3 * error else None
            state["shown"] = [mean, error, None if clipped is None else min(1.0, max(0.0, clipped))]
            state["begun"], state["before"] = rounds, [state["contributions"], state["signs"]]
        return state

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """See `LivePart.state_dict`."""
        noise = [self._present.noise.state_dict(), self._signs.noise.state_dict()]
        return {"counts": dict(state), "noise": noise}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """See `LivePart.load_state`."""
        self._present.load_state(saved["noise"][0])
        self._signs.load_state(saved["noise"][1])
        self.state = dict(saved["counts"])

    def noted(self) -> Mapping[str, float]:
        """See `LivePart.noted`."""
        shown = self.state["shown"] or ()
        return {name: value for name, value in zip(self._columns, shown, strict=False) if value is not None}

    @property
    def beforehand(self) -> str:
        """See `LivePart.beforehand`."""
        return f"health {self.power.words()}"

    @property
    def alarm(self) -> str | None:
        """See `LivePart.alarm`; looked for as soon as it can be told and then at the end of each block, since
        every look may be wrong by itself."""
        since, rounds, total = self.state["since"], self.state["rounds"], self.state["contributions"]
        looks = self.state["begun"] == rounds or not self.power.tells(since, rounds - 1)
        if not (looks and self.power.is_dead(since, rounds, total)):
            return None
        mean, error = max(0.0, total / (rounds - since)), self.power.error(since, rounds)
        return (
            f"health: about {mean:.1f} of {self.power.size} planned contributions a round "
            f"were not zero in rounds {since + 1} to {rounds} (noise: {error:.1f}): most clients "
            "fail, own nothing, or do not answer"
        )
