"""Canaries of a run as they are chosen, and what a privacy statement says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

from fedmf.accounting import at_most, binomial_upper, gaussian_epsilon
from fedmf.parts.part import Claim, LivePart, Part, Setting, Stage
from fedmf.values import check_whole

#: With which lower bounds of statements hold.
CONFIDENCE: Final = 0.95
#: Relative; far above the errors of quantiles, and far below anything that matters.
_DOWNWARDS: Final = 1.0 - 1e-9


@dataclass(frozen=True)
class CanaryBound:
    """What canaries of one run show.

    Attributes:
        judged: m, canaries whose coins were guessed.
        guessed: N, how many of their coins were guessed rightly.
        mu: with the stated confidence the run's release is not of noise with μ' < mu; 0 says nothing.
        epsilon: ε(δ) of Gaussian noise of that μ, rounded down.
        confidence: of both.
    """

    judged: int
    guessed: int
    mu: float
    epsilon: float
    confidence: float


def canary_bound(guessed: int, judged: int, delta: float, confidence: float = CONFIDENCE) -> CanaryBound:
    """The largest μ that so many right guesses refute: N is stochastically at most Binomial(m, Φ(μ/2)).

    Args:
        guessed: N, coins guessed rightly.
        judged: m, coins guessed.
        delta: δ at which ε is stated.
        confidence: in (0, 1).

    Raises:
        ValueError: N above m, or a confidence outside (0, 1).

    Guarantees:
        If the noise of a run is Gaussian, independent of the coins, and its canaries are orthogonal, of at
        most μ, the bound is above μ with probability at most 1 − confidence: Theorem 2 of
        docs/theory/canaries.md.

    >>> found = canary_bound(guessed=90, judged=100, delta=1e-5)
    >>> round(found.mu, 3), round(found.epsilon, 2)
    (1.959, 9.74)
    >>> canary_bound(50, 100, 1e-5).epsilon
    0.0
    """
    check_whole("m (coins guessed)", judged, 0)
    check_whole("N (coins guessed rightly)", guessed, 0, judged)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence (of the bound) must lie strictly between 0 and 1; got {confidence!r}.")
    accuracy = 1.0 - binomial_upper(judged - guessed, judged, 1.0 - confidence)
    mu = 2.0 * float(ndtri(accuracy)) * _DOWNWARDS if accuracy > 0.5 else 0.0
    epsilon = gaussian_epsilon(1.0 / mu, delta) * _DOWNWARDS if mu > 0 else 0.0
    return CanaryBound(judged, guessed, mu, epsilon, confidence)


def canary_power(canaries: int, claimed: float, true: float, confidence: float = CONFIDENCE) -> float:
    """The probability that so many canaries refute a claimed μ where the true one is larger.

    No other users' updates are between: they make it smaller.

    >>> canary_power(150, 1.6, 2.4) > 0.9, canary_power(150, 1.6, 1.6) <= 0.05
    (True, True)
    """
    fewer = np.arange(canaries + 1)  # the claim is refuted by more right guesses than so many
    tails = bdtrc(fewer, canaries, ndtr(claimed / 2))
    return float(bdtrc(int(np.argmax(tails <= 1.0 - confidence)), canaries, ndtr(true / 2)))


@dataclass(frozen=True)
class Canaries(Part):
    """Simulated users that the server adds to the sums of a real run, so that the run audits itself.

    Each has a direction of its own and a fair secret coin: with heads it sends an update along its direction,
    longer than the clip norm, in as many rounds as a user may take part in, with tails nothing (for
    replace-one: the opposite). From what was released the coins are guessed; how many are right bounds ε of
    the run from below (docs/canaries.md).

    Args:
        count: how many; 0 for a run without canaries.
        seed: public seed of their directions; the coins follow from the run's key.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "simulated"
    name: ClassVar[str] = "canaries"
    planned: ClassVar[bool] = False

    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("count (of canaries)", self.count, 0, 1 << 20)
        check_whole("seed (of canaries' directions)", self.seed, 0, 2**63 - 1)

    @property
    def parts(self) -> tuple[Canaries, ...]:
        """What of them is a part of a run: nothing without any."""
        return (self,) if self.count else ()

    def check(self, setting: Setting) -> None:
        """Refuse canaries where no theorem says what guessing their coins shows.

        Raises:
            ValueError: a run without noise, amplified, of check-ins, with a moving clip norm, rounded
                noise or a second moment; or more canaries than parameters.
        """
        if self.count == 0:
            return
        asked = f"count (of canaries) must be 0 {{}}; got {self.count}. "
        if not setting.noisy:
            raise ValueError(
                asked.format("in a run without noise") + "It claims nothing that could be refuted."
            )
        if setting.amplified:
            raise ValueError(
                asked.format("in an amplified run")
                + "Canaries take part in known rounds, and no theorem here bounds secret ones."
            )
        if not setting.known_beforehand:
            raise ValueError(
                asked.format("with check-in cohorts")
                + "Canaries keep a plan, and nobody plans who checks in."
            )
        if setting.moves_clip_norm:
            raise ValueError(
                asked.format("where the clip norm adapts") + "No theorem here covers noise whose level moves."
            )
        if setting.stored_as != "float64":
            raise ValueError(
                asked.format(f"with noise stored as {setting.stored_as}")
                + "Rounded noise is not exactly Gaussian."
            )
        if setting.paired:
            raise ValueError(
                asked.format("with an optimizer that needs a second moment")
                + "No theorem here covers features of canaries' updates."
            )
        if setting.dimension is not None and self.count > setting.dimension:
            raise ValueError(
                f"count (of canaries) must be at most d={setting.dimension}, the parameters of the model; "
                f"got {self.count}. Each has coordinates of its own."
            )

    def files(self, rounds: int) -> Mapping[str, bytes]:
        """n rows of m numbers, float64, little-endian; NaN where nothing was released yet."""
        return {CANARY_ROWS: np.full((rounds, self.count), np.nan, "<f8").tobytes()}

    def open(self, stage: Stage) -> LivePart:
        """See `Part.open`."""
        from fedmf.parts.canaries.team import CanaryTeam  # readers of records load no framework

        return CanaryTeam(self.name, self.count, self.seed, CANARY_ROWS, stage)

    @property
    def noted(self) -> bool:
        """What they show is noted when a run is stated."""
        return True

    def chosen(self) -> dict[str, Any]:
        """See `Part.chosen`."""
        return {"count": self.count, "seed": self.seed}

    def facts(self, metrics: Mapping[int, Mapping[str, Any]], claim: Claim) -> dict[str, Any]:
        """How many there are, and what they showed when the run was last stated."""
        rounds = max((t for t, row in metrics.items() if "canaries_judged" in row), default=None)
        if rounds is None:
            return self.chosen()
        judged, guessed = (int(metrics[rounds][f"canaries_{name}"]) for name in ("judged", "guessed"))
        bound = canary_bound(guessed, judged, claim.delta)
        return {
            **self.chosen(),
            "rounds": rounds,
            "judged": judged,
            "guessed": guessed,
            "confidence": bound.confidence,
            "mu_at_least": bound.mu,
            "epsilon_at_least": bound.epsilon,
            "refuted": bound.mu > claim.mu,
        }

    @classmethod
    def lines(cls, facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """See `Part.lines`."""
        return [("canaries", _words(facts))]

    @classmethod
    def against(cls, facts: Mapping[str, Any]) -> str | None:
        """See `Part.against`."""
        refuted = facts.get("refuted", False)
        return (
            "REFUTED: the canaries of this run show that it leaks more than it claims." if refuted else None
        )


#: Of `Canaries.files`.
CANARY_ROWS: Final = "canaries.rows"
_WORTH: Final = "says nothing about runs without canaries beyond the same code"


def _words(part: Mapping[str, Any]) -> str:
    """The same in a sentence."""
    if "judged" not in part:
        return f"{part['count']} simulated users in the sums of this run, for auditing it"
    text = (
        f"epsilon at least {at_most(part['epsilon_at_least'])} (mu {at_most(part['mu_at_least'])}) at "
        f"{100 * part['confidence']:g} % confidence from {part['judged']} canaries in this run after "
        f"{part['rounds']} rounds, {part['guessed']} coins guessed rightly; {_WORTH}"
    )
    claimed = "REFUTED, the run leaks more than it claims: " if part["refuted"] else ""
    return claimed + text
