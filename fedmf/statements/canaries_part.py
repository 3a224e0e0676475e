"""What a privacy statement says of canaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

from fedmf.accounting import ParticipationRecord, at_most, binomial_upper, gaussian_epsilon, gaussian_mu
from fedmf.statements.plan import Plan
from fedmf.values import Value, check_whole

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
        most μ, the bound is above μ with probability at most 1 − confidence (docs/canaries.md, Theorem 2).

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
class Canaries(Value):
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
    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("count (of canaries)", self.count, 0, 1 << 20)
        check_whole("seed (of canaries' directions)", self.seed, 0, 2**63 - 1)


_WORTH: Final = "says nothing about runs without canaries beyond the same code"


def canaries_part(
    run: Mapping[str, Any], plan: Plan, record: ParticipationRecord | None = None
) -> dict[str, Any] | None:
    """How many canaries a run has and what they showed when it was last evaluated, JSON-able.

    Args:
        run: as its header has it.
        plan: of the run.
        record: its record; without one nothing is said of what they showed.

    Returns:
        None for a run without canaries.
    """
    if "canaries" not in run:
        return None
    part: dict[str, Any] = {"count": run["canaries"]["count"], "seed": run["canaries"]["seed"]}
    noted = {} if record is None else record.metrics()
    rounds = max((t for t, row in noted.items() if "canaries_judged" in row), default=None)
    if rounds is None:
        return part
    judged, guessed = (int(noted[rounds][f"canaries_{name}"]) for name in ("judged", "guessed"))
    bound = canary_bound(guessed, judged, plan.privacy.delta)
    return {
        **part,
        "rounds": rounds,
        "judged": judged,
        "guessed": guessed,
        "confidence": bound.confidence,
        "mu_at_least": bound.mu,
        "epsilon_at_least": bound.epsilon,
        "refuted": bound.mu > gaussian_mu(plan.noise_multiplier),
    }


def canaries_words(part: Mapping[str, Any]) -> str:
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
