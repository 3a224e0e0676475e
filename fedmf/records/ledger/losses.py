"""What a ledger lacks of what its machine knows: refused, or noted as spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from fedmf.accounting import RESTORED, LostRounds
from fedmf.errors import ConfigError
from fedmf.records.guard import Guard
from fedmf.records.ledger.ledger import FRESH_BYTES, Ledger
from fedmf.statements import Plan

#: Round ↦ the users that were planned for it.
Planned = Callable[[int], Sequence[str]]


def meet_losses(
    ledger: Ledger, guard: Guard, plan: Plan, restored: Planned | None = None, planned: Planned | None = None
) -> None:
    """See that a ledger holds all rounds that the machine knows of, or note those that are lost.

    Args:
        ledger: of a run, open for writing.
        guard: what the machine knows.
        plan: of the run.
        restored: the users that were planned for a round, to go on from a backup and count them; None
            refuses.
        planned: the same, to count a round whose commit failed and which is not there.

    Raises:
        ConfigError: rounds are lost, and they are not to be counted or cannot be.
    """
    chains = [chain for _, chain in ledger.chains()]
    losses = guard.losses(ledger.openings(), len(chains), lambda rounds: chains[rounds - 1])
    if not losses:
        return
    failed = guard.failed(losses)
    counted = restored or (planned if failed else None)
    if counted is None:
        raise ConfigError(
            f"{ledger.path.parent} is a copy or a restored backup: {losses[-1].released} rounds of its run "
            f"were released, of which it holds {losses[-1].first}. Go on where the others are, or with "
            "--restored-from-backup, which counts them as spent."
        )
    if reason := plan.without_losses:
        after = "after a commit that failed" if failed else "from a backup"
        raise ConfigError(
            f"{ledger.path.parent} cannot go on {after}: {reason}. Start a new run, with a budget of its own."
        )
    lost = [
        LostRounds(
            loss.first,
            loss.released,
            loss.head,
            tuple(tuple(counted(t)) for t in range(loss.first, loss.released)),
        ).to_dict()
        for loss in losses
    ]
    ledger.open_era(os.urandom(FRESH_BYTES), {**ledger.note, RESTORED: lost})
    guard.note(ledger.openings(), len(chains), chains[-1] if chains else None, losses)
