"""What a privacy statement says of canaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting.canaries.bound import canary_bound
from fedmf.accounting.gaussian import gaussian_mu
from fedmf.accounting.plan import Plan
from fedmf.accounting.recorded import ParticipationRecord
from fedmf.accounting.rounding import at_most

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
