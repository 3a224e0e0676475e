"""The clip norm of a run: one for all rounds, or one that follows a quantile of users' norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Field, Value

if TYPE_CHECKING:
    from fedmf.clipping.user_statistics import UserScalar

_COLUMN: Final = "clip_norm"
#: ζ_t stays within this factor of ζ_0.
_FARTHEST: Final = 2.0**20


@dataclass(frozen=True)
class FixedClipping(Value):
    """A constant clip norm, ζ_t = ζ_0."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True)
class QuantileClipping(Statistic):
    """ζ_t follows a quantile of the norms of users' updates, estimated from released noisy counts.

    With S_t the sum of the signs of users (+1 within ζ_t, −1 above, 0 for the zero vector), round t
    releases q_t = ½ + (S_t + noise)/(2m). With q̂ the mean of the q of the B rounds of a block, the
    next block has

        ζ' = ζ·exp(−η(q̂ − γ)),

    within 2⁻²⁰ζ_0 … 2²⁰ζ_0. A user's clipped update x and sign s enter the release as one vector
    (a·x/ζ_t, b·s) with a² + b² = 1, so ε is the same as for a fixed clip norm:
    docs/theory/accounting.md.

    Raises:
        ValueError: a value out of its range.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy (2021), "Differentially Private Learning with Adaptive
        Clipping".
    """

    kind: ClassVar[str] = "quantile"
    name = "clipping"

    quantile: Annotated[
        float, Field("target share γ of users with updates within the clip norm", "γ", gt=0, lt=1)
    ] = 0.5
    learning_rate: Annotated[float, Field("learning rate η of ln ζ", "η", gt=0)] = 0.5
    rounds_per_update: Annotated[
        int, Field("number of rounds B between two changes of ζ", "B", ge=1)
    ] = 5
    normalize_updates: Annotated[
        bool, Field("divide mean updates by ζ, so that the server's step does not depend on it")
    ] = False

    def summed(self) -> UserScalar:
        """The signs of users."""
        from fedmf.clipping.user_statistics import SIGNS  # readers of records load no framework

        return SIGNS

    def begin(self, clip_norm: float) -> dict[str, float]:
        """ζ_0, ζ of the next round, and the sum of the q released since ζ last changed."""
        return {"first": clip_norm, _COLUMN: clip_norm, "shares": 0.0}

    def after(self, t: int, mean: float, state: Mapping[str, Any]) -> dict[str, float]:
        """The state after round t; a block ends if B divides t + 1."""
        first = state["first"]
        norm = state[_COLUMN]
        shares = state["shares"] + 0.5 + mean / 2
        if (t + 1) % self.rounds_per_update:
            return {"first": first, _COLUMN: norm, "shares": shares}
        farthest = math.log(_FARTHEST)
        share = shares / self.rounds_per_update
        step = math.log(norm / first) - self.learning_rate * (share - self.quantile)
        norm = first * math.exp(min(max(step, -farthest), farthest))
        return {"first": first, _COLUMN: norm, "shares": 0.0}

    def metrics(self, state: Mapping[str, Any], noise_std: float) -> dict[str, float]:
        """ζ of the next round, as a column of the metrics table."""
        del noise_std
        return {_COLUMN: state[_COLUMN]}

    def clip_norm(self, state: Mapping[str, Any]) -> float:
        """ζ of the next round."""
        return float(state[_COLUMN])

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of ζ."""
        return (_COLUMN,)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """One assumption: ζ depends on released figures alone."""
        return (
            (
                "the clip norm of a round was computed only from released figures: epsilon is the"
                " same as for a fixed clip norm, and the sequence of clip norms may be published"
                " like the models"
            ),
        )

    @property
    def description(self) -> str:
        """One line for statements."""
        percent = f"{100 * self.budget_share:g} %"
        return (
            f"follows the noisy {self.quantile:g}-quantile of norms, for {percent} of mu^2; clip"
            " norm and noise above belong to the first round"
        )
