"""What a privacy statement says of private evaluation, from its plan and its own record of participation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmf.accounting import (
    ParticipationRecord,
    ParticipationSummary,
    PatternTable,
    gaussian_mu,
    realised_privacy,
)
from fedmf.errors import LedgerError
from fedmf.parts import EvaluationPlan
from fedmf.statements.plan import Plan
from fedmf.statements.planned import check_sensitivity


@dataclass(frozen=True, eq=False)
class RecordedEvaluations:
    """What the record of evaluations holds, checked row by row."""

    summary: ParticipationSummary
    patterns: PatternTable


@dataclass(frozen=True, eq=False)
class EvaluationPart:
    """The second stream of a run: what was planned and what its record tells.

    Attributes:
        plan: the contract and the noise.
        recorded: what the record of evaluations holds.
        mu: of the worst user in the record, of evaluations alone.
        adjacency: of the run.
    """

    plan: EvaluationPlan
    recorded: ParticipationSummary
    mu: float
    adjacency: str

    def planned(self) -> dict[str, Any]:
        """What may be public, JSON-able: nothing of it depends on who took part."""
        plan = self.plan
        stds = [plan.stds(e, self.adjacency) for e in range(plan.count)]
        return {
            "evaluations": plan.count,
            "evaluations_released": self.recorded.rounds,
            "every": plan.every,
            "size": plan.size,
            "share": plan.share,
            "metrics": {
                name: {"low": low, "high": high, "largest_std": max(std[name] for std in stds)}
                for name, low, high in plan.ranges
            },
            "max_participations": plan.participation.max_participations,
            "min_separation": plan.participation.min_separation,
            "mechanism": plan.mechanism.name,
            "params": dict(plan.mechanism.params),
            "workload": plan.workload,
            "sensitivity": plan.sensitivity.value,
            "sensitivity_kind": plan.sensitivity.kind,
            "noise_multiplier": plan.noise_multiplier,
            "mu_planned": gaussian_mu(plan.noise_multiplier),
        }

    def realised(self) -> dict[str, Any]:
        """What the record tells without noise, JSON-able."""
        return {
            "mu": self.mu,
            "max_participations": self.recorded.max_participations,
            "min_separation": self.recorded.min_separation,
            "users_participated": self.recorded.users,
            "empty": self.recorded.empty_rounds,
        }


def recorded_evaluations(plan: Plan, record: ParticipationRecord | None) -> RecordedEvaluations | None:
    """Read and check the record of a run's private evaluations; it is read before that of the rounds.

    Raises:
        LedgerError: there is one without a plan or a plan without one, it fails its replay, or it is of
            another contract.
    """
    evaluation = plan.evaluation
    if evaluation is None and record is None:
        return None
    if evaluation is None or record is None:
        raise LedgerError("a run must have a record of evaluations exactly where its header plans them.")
    if record.participation != evaluation.participation:
        raise LedgerError(
            f"the header plans {evaluation.participation} for evaluations and their ledger was created for "
            f"{record.participation}."
        )
    with record.snapshot():
        recorded = RecordedEvaluations(record.replay(), record.patterns())
    if recorded.summary.users > plan.users:
        raise LedgerError(
            f"the ledger of evaluations holds {recorded.summary.users} users; the header says there are "
            f"{plan.users}."
        )
    return recorded


def unseen_evaluations(plan: Plan, released: int) -> RecordedEvaluations | None:
    """So many evaluations of which is not known who judged: as if nobody had; None where none are planned.

    Raises:
        LedgerError: a number that no record of this plan has.
    """
    most = 0 if plan.evaluation is None else plan.evaluation.count
    if not 0 <= released <= most:
        raise LedgerError(f"evaluations_released must lie in 0..{most}; got {released!r}.")
    if plan.evaluation is None:
        return None
    return RecordedEvaluations(
        ParticipationSummary(released, 0, 0, 0, 0, None, 0), PatternTable.of_counts({})
    )


def evaluation_part(
    plan: Plan, recorded: RecordedEvaluations | None, released_rounds: int
) -> EvaluationPart | None:
    """What was spent on evaluations.

    Args:
        plan: of the run.
        recorded: by `recorded_evaluations`.
        released_rounds: of training, read later than the record of evaluations.

    Raises:
        LedgerError: evaluations of models that were never released, or a sensitivity below the one C_e has.
    """
    evaluation = plan.evaluation
    if evaluation is None or recorded is None:
        return None
    rows = recorded.summary.rounds
    if rows > evaluation.released_by(released_rounds):
        raise LedgerError(
            f"the ledger of evaluations holds {rows}; after {released_rounds} rounds there can be "
            f"{evaluation.released_by(released_rounds)} at most."
        )
    check_sensitivity(evaluation, "evaluations")
    adjacency = plan.privacy.adjacency
    noise = evaluation.relative_noise_std(adjacency)
    spent = realised_privacy(
        recorded.patterns, evaluation.release, noise, plan.privacy.delta, rows, adjacency
    )
    return EvaluationPart(evaluation, recorded.summary, spent.mu, adjacency)
