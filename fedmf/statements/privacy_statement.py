"""The privacy statement of a run, computed from its header and its record of participation alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmf.accounting import (
    ParticipationRecord,
    ParticipationSummary,
    RealisedPrivacy,
    gaussian_mu,
    gaussian_rho,
    realised_privacy,
)
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import LedgerError
from fedmf.statements.header import RunHeader
from fedmf.statements.plan import Plan
from fedmf.statements.planned import TOLERANCE, PlannedPrivacy, check_sensitivity, planned_privacy
from fedmf.statements.text import run_text
from fedmf.statements.words import (
    ASSUMPTIONS,
    AVAILABLE,
    INEXACT_GROUPS,
    NOT_COVERED,
    NOT_PRIVATE,
    OPERATING_SYSTEM_KEY,
    PUBLIC_KEY,
    REALISED,
    REALISED_ASSUMPTION,
    REALISED_NOT_COVERED,
    SECRECY,
    SECRET_COHORTS,
    SECRETS,
    SHARED_TIME,
    SHARED_WORKERS,
    TRUST,
)
from fedmf.version import SOFTWARE


@dataclass(frozen=True, eq=False)
class PrivacyStatement:
    """One record that says what a run guarantees to whom, under which assumptions, and what it leaves out.

    Attributes:
        header: what was planned.
        recorded: what the record of participation holds.
        planned: ε that the plan allows.
        realised: ε of each user against an observer who knows its rounds; with amplification the worst may
            exceed the planned ε.
        patterns: how many different patterns of rounds there are.
        parts: what each part of the run says, by its name.
        stated_by: the software that computed this statement; the header names what started the run.
    """

    header: RunHeader
    recorded: ParticipationSummary
    planned: PlannedPrivacy
    realised: RealisedPrivacy
    patterns: int
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stated_by: str = SOFTWARE

    def to_dict(self) -> dict[str, Any]:
        """The operator's statement: a JSON-able dict of finite numbers, strings, lists, dicts and None.

        Its list ``not_private`` names the figures that come from the record of participation without noise.

        None stands for "infinite" in the privacy fields of a run without noise. epsilon_realised and its
        quantiles are never above what the plan allows: only the rounding that `build_statement` accepts is
        taken away.
        """
        header, plan, realised, recorded = self.header, self.header.plan, self.realised, self.recorded
        private, limit = plan.noise_multiplier > 0, self.planned.known_so_far
        unit = plan.privacy.words
        amplified = plan.amplification is not None
        return {
            "unit": unit.name,
            "user_namespace": plan.privacy.user_namespace,
            "adjacency": plan.privacy.adjacency,
            "mechanism": plan.mechanism.name if private else "none",
            "params": dict(plan.mechanism.params),
            "dimension": header.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": recorded.rounds,
            "rounds_empty": recorded.empty_rounds,
            "realised_max_participations": recorded.max_participations,
            "realised_min_separation": recorded.min_separation,
            "sampling": header.sampling,
            "users": plan.users,
            "users_participated": recorded.users,
            "cohort_size": plan.cohorts.size,
            "clip_norm": plan.privacy.clip_norm,
            **{name: dict(facts) for name, facts in self.parts.items()},
            "noise_multiplier": plan.noise_multiplier,
            "sensitivity": plan.sensitivity.value,
            "sensitivity_kind": plan.sensitivity.kind,
            "sensitivity_case": plan.sensitivity.case,
            "noise_std": plan.noise_std,
            "delta": plan.privacy.delta,
            "epsilon_requested": plan.privacy.requested_epsilon,
            "epsilon_planned": _finite(self.planned.epsilon),
            "epsilon_planned_known_cohorts": _finite(self.planned.known_cohorts),
            "epsilon_planned_so_far": None if self.planned.so_far is None else _finite(self.planned.so_far),
            "epsilon_realised": _finite(min(realised.epsilon, limit)),
            "epsilon_realised_quantiles": {
                f"{q:g}": _finite(min(epsilon, limit)) for q, epsilon in realised.quantiles.items()
            },
            "mu_planned": gaussian_mu(plan.noise_multiplier) if private else None,
            "rho_planned": gaussian_rho(plan.noise_multiplier) if private else None,
            "mu_realised": _finite(realised.mu),
            "rho_realised": _finite(realised.rho),
            "realised_patterns": self.patterns,
            "realised_worst_pattern": list(realised.worst_pattern),
            "amplification": None if plan.amplification is None else plan.amplification.to_dict(),
            "second_moment": _second_moment(plan),
            "noise_key": _noise_key(header),
            "noise_key_public": header.key_public if private else None,
            "trust": unit.say(TRUST[header.clipped_by]),
            "public_inputs": [dict(entry) for entry in header.public_inputs],
            "not_private": list(REALISED),
            "assumptions": [
                *([SECRECY] if amplified else []),
                unit.distinct,
                *map(unit.say, self._assumptions()),
            ],
            "not_covered": [
                *unit.not_covered,
                *(NOT_PRIVATE[name] for name in header.not_private),
                *map(unit.say, NOT_COVERED),
                REALISED_NOT_COVERED,
            ],
            "secret": [*([SECRET_COHORTS] if amplified else []), *map(unit.say, SECRETS)],
            "software": header.software,
            "stated_by": self.stated_by,
        }

    def _assumptions(self) -> list[str]:
        """Under what the figures hold, of any unit."""
        header = self.header
        return [
            *ASSUMPTIONS,
            *([SHARED_WORKERS] if header.shares_workers else []),
            *([SHARED_TIME] if header.shares_time else []),
            *([INEXACT_GROUPS] if header.groups_inexactly else []),
            *([AVAILABLE] if isinstance(header.plan.cohorts, AvailableCohorts) else []),
            REALISED_ASSUMPTION,
            *(text for part in header.plan.parts for text in part.assumptions),
        ]

    def public(self) -> dict[str, Any]:
        """What of it may be public: nothing that depends on who took part in which round.

        Guarantees:
            Two runs that differ in participation alone, after as many rounds, give the same dict.
        """
        left_out = {*REALISED, "not_private"}
        kept = {name: value for name, value in self.to_dict().items() if name not in left_out}
        kept |= {part.name: part.to_dict() for part in self.header.plan.parts}  # not what it released
        realised = self.header.plan.privacy.words.say(REALISED_ASSUMPTION)
        for name, text in (("assumptions", realised), ("not_covered", REALISED_NOT_COVERED)):
            kept[name] = [entry for entry in kept[name] if entry != text]
        return kept

    def to_json(self) -> str:
        """The operator's statement as indented JSON, ending in a newline."""
        return as_json(self.to_dict())

    def render_text(self) -> str:
        """The operator's statement as plain text for a terminal."""
        return run_text(self.to_dict())


def as_json(statement: Mapping[str, Any]) -> str:
    """A statement's dict as indented JSON, ending in a newline."""
    return json.dumps(statement, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def build_statement(header: RunHeader, record: ParticipationRecord) -> PrivacyStatement:
    """Compute the statement of a run from its header and its verified record of participation.

    Args:
        header: the run's description, usually ``RunHeader.from_dict(ledger.header)``.
        record: its ledger, open for reading or writing; a run in progress may go on committing.

    Raises:
        LedgerError: the record contradicts the header.
        RuntimeError: the two accountants disagree.

    Guarantees:
        Without amplification ε_realised ≤ ε_planned_so_far ≤ ε_planned (to a relative 1e-9); with it
        ε_realised is at most what (k, b) allows an observer of the cohorts, ε_planned_so_far ≤ ε_planned ≤
        ε_planned_known_cohorts, and δ(noise, ε_planned) was computed again. Otherwise no statement is made.
    """
    plan = header.plan
    if record.participation != plan.participation:
        raise LedgerError(
            f"the header plans {plan.participation} and the ledger was created for {record.participation}."
        )
    recorded = record.summary()
    metrics = record.metrics() if any(part.columns for part in plan.parts) else {}
    parts = {part.name: part.facts(metrics) for part in plan.parts}
    patterns = record.patterns()
    if recorded.users > plan.users:
        raise LedgerError(f"the ledger holds {recorded.users} users; the header says there are {plan.users}.")
    check_sensitivity(plan)
    realised = realised_privacy(
        patterns,
        plan.release,
        plan.relative_noise_std,
        plan.privacy.delta,
        recorded.rounds,
        plan.privacy.adjacency,
        plan.users,
    )
    planned = planned_privacy(plan, recorded.rounds)
    if realised.epsilon > planned.known_so_far + TOLERANCE * max(1.0, planned.known_so_far):
        raise LedgerError(
            f"epsilon_realised is {realised.epsilon!r}, above the planned {planned.known_so_far!r}. The "
            "run's records contradict its plan; no privacy statement is made."
        )
    return PrivacyStatement(header, recorded, planned, realised, patterns.patterns, parts)


def _second_moment(plan: Plan) -> dict[str, Any] | None:
    """What the statement says of the second stream."""
    return plan.second.facts(plan.second_noise_std)


def _noise_key(header: RunHeader) -> str:
    if header.plan.noise_multiplier == 0:
        return "none: no noise was added"
    return f"{header.key_fingerprint} ({PUBLIC_KEY if header.key_public else OPERATING_SYSTEM_KEY})"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
