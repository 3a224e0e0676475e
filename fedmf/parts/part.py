"""A quantity that a run releases beside its model: one value that every station asks the same questions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedmf.mechanisms.matrix import Factorization
from fedmf.values import Value

if TYPE_CHECKING:
    from fedmf.noise import KeySchedule
    from fedmf.training import FixedPointSum, RowStatistic, Statistic

#: Makes up for the rounding of a square root and a quotient, in the safe direction.
_UPWARDS: Final = 1.0 + 2.0**-50


@dataclass(frozen=True)
class Setting:
    """What a part stands beside, as far as theorems ask.

    Attributes:
        amplified: whether the noise is calibrated for secret cohorts.
        paired: whether the optimizer needs a second moment.
        dimension: d; None before the model is known.
    """

    amplified: bool
    paired: bool
    dimension: int | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """What of a plan a part needs in order to release something.

    Attributes:
        factorization: C; the part's noise is correlated as that of the sums.
        size: m, the planned cohort size.
        clip_norm: ζ_0.
        noise_std: standard deviation of the z of a sum of vectors of norm 1 that has all of μ².
        keys: which key makes which row.
    """

    factorization: Factorization
    size: int
    clip_norm: float
    noise_std: float
    keys: KeySchedule


@dataclass(frozen=True)
class Part(Value, ABC):
    """What is released beside the sums of updates, or how they are clipped, as it is chosen and recorded.

    Of each user a part may sum a statistic: a function of what became of the user's update. Update and
    statistics enter the release as one vector (a·x/ζ, b_1·s_1/c_1, …), with b_i² the shares of the parts
    and a² what they leave of 1: its norm is at most 1, whatever the parts are, so ε is that of the sums
    alone, and they pay by noise that is 1/a times as large (docs/theory/accounting.md proves it for
    every such vector).

    A station asks every part; what a part does not do it answers with nothing.
    """

    #: By which runs, plans and statements record it.
    name: ClassVar[str]

    @property
    def mu_share(self) -> float:
        """b² in [0, 1), the share of μ² that goes to its statistics."""
        return 0.0

    @property
    def own_factor(self) -> float:
        """1/b, rounded up: noise of a statistic of bound 1 per noise of x/ζ with all of μ²."""
        return _UPWARDS / math.sqrt(self.mu_share)

    def check(self, setting: Setting) -> None:
        """Refuse what no theorem covers together.

        Raises:
            ValueError: there is such a thing.
        """

    def statistics(self) -> tuple[Statistic | RowStatistic, ...]:
        """What it sums over users."""
        return ()

    def open(self, stage: Stage) -> LivePart | None:
        """What releases it in a run; None if nothing is released."""
        del stage
        return None

    def unit(self, clip_norm: float) -> float:
        """In what unit the server sees the mean of updates clipped to this norm."""
        del clip_norm
        return 1.0

    @property
    def moves_clip_norm(self) -> bool:
        """Whether ζ follows what it releases."""
        return False

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the metrics table, in their order; released figures, as public as the models."""
        return ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Under what the figures of a statement hold beside those that every run has."""
        return ()

    def facts(self, metrics: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """What the operator's statement says of it, JSON-able.

        Args:
            metrics: what was noted of released models, by rounds released; without them, what follows from
                the plan alone.
        """
        del metrics
        return self.to_dict()

    @classmethod
    def remarks(cls, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What a statement's text adds to its own lines, by their names, from `facts`."""
        del facts
        return {}

    @classmethod
    def in_short(cls, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What a summary of a few lines adds likewise."""
        del facts
        return {}

    @classmethod
    def lines(cls, facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """(name, value) of lines of its own, from `facts`."""
        del facts
        return ()


class LivePart(ABC):
    """A part of a run under way. Its state is a JSON-able dict; floats survive JSON bit for bit.

    Attributes:
        name: of the part.
        state: what it needs for the next round, as of the last round that is final.
    """

    name: str
    state: Mapping[str, Any]

    @abstractmethod
    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """The state once round t is released; nothing is kept of it here, since the round may not be.

        It draws the part's row of noise of that round.
        """

    @abstractmethod
    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state with the position and identity of the noise, for a checkpoint."""

    @abstractmethod
    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made.

        Raises:
            ValueError: it was made with other noise.
        """

    @property
    def clip_norm(self) -> float | None:
        """ζ of the next round; None where the part does not say."""
        return None

    def noted(self) -> Mapping[str, float]:
        """What it has released last, by the part's `Part.columns`."""
        return {}

    @property
    def beforehand(self) -> str | None:
        """What its releases will be able to tell, from the plan alone: a line for whoever begins the run."""
        return None


def check_share(share: float) -> None:
    """Refuse a share of μ² that is none.

    Raises:
        ValueError: it does not lie strictly between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"b² (share) must lie strictly between 0 and 1; got {share!r}.")


def refuse_beside(what: str, against: Mapping[str, bool]) -> None:
    """Refuse a part beside what no theorem covers with it.

    Args:
        what: the part.
        against: of each thing, by its words, whether it is there.

    Raises:
        ValueError: one of them is.
    """
    for other, present in against.items():
        if present:
            raise ValueError(f"{what} must be left out with {other}: no theorem covers the two.")


def update_factor(parts: Sequence[Part]) -> float:
    """1/a, by which the noise of updates is larger than with all of μ² for them alone, rounded up."""
    left = _left(parts)
    return _UPWARDS / math.sqrt(left) if left < 1 else 1.0


def _left(parts: Sequence[Part]) -> Fraction:
    """a² = 1 − Σ b², exactly: of a difference of float64 numbers little may be left."""
    return 1 - sum((Fraction(part.mu_share) for part in parts), Fraction(0))


def check_shares(parts: Sequence[Part]) -> None:
    """Refuse parts that leave nothing to updates, or that share a name.

    Raises:
        ValueError: they do.
    """
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"parts (of a run) must have names of their own; got {', '.join(names)}.")
    if any(part.mu_share < 0 for part in parts) or _left(parts) <= 0:
        shares = ", ".join(f"{part.name} {part.mu_share!r}" for part in parts)
        raise ValueError(f"share (b², of all parts together) must be below 1; got {shares}.")
