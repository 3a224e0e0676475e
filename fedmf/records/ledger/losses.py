"""What a ledger lacks of what its machine knows: refused, or noted as spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from fedmf.accounting import RESTORED, LostRounds, Plan
from fedmf.errors import ConfigError
from fedmf.records.guard import Guard
from fedmf.records.ledger.ledger import FRESH_BYTES, Ledger

__all__ = ["meet_losses"]


def meet_losses(
    ledger: Ledger, guard: Guard, plan: Plan, planned: Callable[[int], Sequence[str]] | None = None
) -> None:
    """See that a ledger holds all rounds that the machine knows of, or note those that are lost.

    Args:
        ledger: of a run, open for writing.
        guard: what the machine knows.
        plan: of the run.
        planned: the users that were planned for a round, to go on and count them; None refuses.

    Raises:
        ConfigError: rounds are lost, and they are not to be counted or cannot be.
    """
    chains = [chain for _, chain in ledger.chains()]
    losses = guard.losses(ledger.openings(), len(chains), lambda rounds: chains[rounds - 1])
    if not losses:
        return
    if planned is None:
        raise ConfigError(
            f"{ledger.path.parent} is a copy or a restored backup: {losses[-1].released} rounds of its run "
            f"were released, of which it holds {losses[-1].first}. Go on where the others are, or with "
            "--restored-from-backup, which counts them as spent."
        )
    if reason := plan.without_losses:
        raise ConfigError(
            f"{ledger.path.parent} cannot go on from a backup: {reason}. Start a new run, with a budget of "
            "its own."
        )
    lost = [
        LostRounds(
            loss.first,
            loss.released,
            loss.head,
            tuple(tuple(planned(t)) for t in range(loss.first, loss.released)),
        ).to_dict()
        for loss in losses
    ]
    ledger.open_era(os.urandom(FRESH_BYTES), {**ledger.note, RESTORED: lost})
    guard.note(ledger.openings(), len(chains), chains[-1] if chains else None, losses)
