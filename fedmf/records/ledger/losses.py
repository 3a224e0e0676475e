"""Whom rounds cost that were released and are not in a ledger: refused, or noted as spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedmf.accounting import LostRounds
from fedmf.errors import ConfigError
from fedmf.records.guard import Guard, Loss
from fedmf.records.ledger.ledger import Ledger
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

    def noted(failed: bool) -> Callable[[Loss], dict[str, Any]] | None:
        counted = restored or (planned if failed else None)
        if counted is None:
            return None
        if reason := plan.without_losses:
            after = "after a commit that failed" if failed else "from a backup"
            raise ConfigError(
                f"{ledger.path.parent} cannot go on {after}: {reason}. Start a new run, with a budget of its "
                "own."
            )
        return lambda loss: LostRounds(
            loss.first,
            loss.released,
            loss.head,
            tuple(tuple(counted(t)) for t in range(loss.first, loss.released)),
        ).to_dict()

    ledger.count_losses(guard, noted, ConfigError)
