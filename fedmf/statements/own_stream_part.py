"""What a privacy statement says of a stream with a record of its own, from its plan and that record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmf.accounting import (
    ParticipationRecord,
    ParticipationSummary,
    PatternTable,
    realised_privacy,
)
from fedmf.errors import LedgerError
from fedmf.parts import OWN_STREAMS, OwnStream
from fedmf.statements.plan import Plan
from fedmf.statements.planned import check_sensitivity

#: The records of a run's own streams, by their names.
OwnRecords = Mapping[str, ParticipationRecord]


@dataclass(frozen=True, eq=False)
class RecordedStream:
    """What the record of a stream holds, checked row by row."""

    stream: OwnStream
    summary: ParticipationSummary
    patterns: PatternTable


@dataclass(frozen=True, eq=False)
class OwnStreamPart:
    """A stream of a run: what was planned and what its record tells.

    Attributes:
        plan: the contract and the noise.
        recorded: what the record holds.
        mu: of the worst user in the record, of this stream alone.
        adjacency: of the run.
    """

    plan: OwnStream
    recorded: ParticipationSummary
    mu: float
    adjacency: str

    def planned(self) -> dict[str, Any]:
        """What may be public, JSON-able: nothing of it depends on who took part."""
        return self.plan.facts(self.adjacency, self.recorded.rounds)

    def realised(self) -> dict[str, Any]:
        """What the record tells without noise, JSON-able."""
        return {
            "mu": self.mu,
            "max_participations": self.recorded.max_participations,
            "min_separation": self.recorded.min_separation,
            "users_participated": self.recorded.users,
            "empty": self.recorded.empty_rounds,
        }


def recorded_streams(plan: Plan, records: OwnRecords) -> list[RecordedStream]:
    """Read and check the records of a run's own streams; they are read before that of the rounds.

    Raises:
        LedgerError: there is one without a plan or a plan without one, it fails its replay, or it is of
            another contract.
    """
    planned = {own.name for own in plan.own_streams}
    for name, stream in OWN_STREAMS.items():
        if (name in planned) != (name in records):
            raise LedgerError(
                f"a run must have a record of {stream.plural} exactly where its header plans them."
            )
    return [_recorded(plan, own, records[own.name]) for own in plan.own_streams]


def _recorded(plan: Plan, own: OwnStream, record: ParticipationRecord) -> RecordedStream:
    if record.participation != own.participation:
        raise LedgerError(
            f"the header plans {own.participation} for {own.plural} and their ledger was created for "
            f"{record.participation}."
        )
    with record.snapshot():
        recorded = RecordedStream(own, record.replay(), record.patterns())
    if recorded.summary.users > plan.users:
        raise LedgerError(
            f"the ledger of {own.plural} holds {recorded.summary.users} users; the header says there are "
            f"{plan.users}."
        )
    return recorded


def own_stream_parts(
    plan: Plan, recorded: Sequence[RecordedStream], released_rounds: int
) -> tuple[OwnStreamPart, ...]:
    """What was spent on each stream.

    Args:
        plan: of the run.
        recorded: by `recorded_streams`.
        released_rounds: of training, read later than the records of the streams.

    Raises:
        LedgerError: releases that belong to rounds that were never released, or a sensitivity below the one
            C_e has.
    """
    return tuple(_part(plan, entry, released_rounds) for entry in recorded)


def _part(plan: Plan, recorded: RecordedStream, released_rounds: int) -> OwnStreamPart:
    own, rows = recorded.stream, recorded.summary.rounds
    if rows > own.released_by(released_rounds):
        raise LedgerError(
            f"the ledger of {own.plural} holds {rows}; after {released_rounds} rounds there can be "
            f"{own.released_by(released_rounds)} at most."
        )
    check_sensitivity(own, own.plural)
    adjacency = plan.privacy.adjacency
    noise = own.relative_noise_std(adjacency)
    spent = realised_privacy(recorded.patterns, own.release, noise, plan.privacy.delta, rows, adjacency)
    return OwnStreamPart(own, recorded.summary, spent.mu, adjacency)
