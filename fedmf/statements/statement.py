"""The privacy statement: one dict for runs and streams, computed from header and ledger alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final

from fedmf.accounting import ParticipationRecord, gaussian_mu
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import LedgerError
from fedmf.parts import stated
from fedmf.statements.header import RunHeader
from fedmf.statements.planned import check_sensitivity, planned_privacy
from fedmf.statements.spent import finite, run_spent
from fedmf.statements.text import text
from fedmf.statements.words import (
    ALWAYS_NOT_COVERED,
    ASSUMPTIONS,
    AVAILABLE,
    INEXACT_GROUPS,
    NOT_COVERED,
    NOT_PRIVATE,
    SECRECY,
    SECRET_COHORTS,
    SECRETS,
    SHARED_TIME,
    SHARED_WORKERS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    TRUST,
)

#: What the record of participation tells without noise: keys of the operator's statement alone.
OPERATORS: Final = (
    "epsilon_spent",
    "epsilon_spent_quantiles",
    "mu_spent",
    "actual_max_participations",
    "actual_min_separation",
    "users_participated",
)


class PrivacyStatement(dict[str, Any]):
    """What a run, a stream, or several together guarantee to whom, under which assumptions.

    A dict of finite numbers, strings, lists, dicts and None; None stands for "infinite" in the privacy fields
    of a run without noise. Its list ``not_private`` names the figures that come from the record of
    participation without noise: this is the operator's statement.
    """

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)

    def to_json(self) -> str:
        """The same as indented JSON, ending in a newline."""
        return json.dumps(self, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def render_text(
        self, full: bool = True, rest: str = "", model: Sequence[tuple[str, str]] = (), place: str = ""
    ) -> str:
        """The same in words, see `fedmf.statements.text`."""
        return text(self, full, rest, model, place)

    def public(self) -> PrivacyStatement:
        """What of it may be public: nothing that depends on who took part when.

        Guarantees:
            Two runs that differ in participation alone, after as many rounds, give the same statement.
        """
        left_out = {*OPERATORS, "not_private"}
        kept = {name: value for name, value in self.items() if name not in left_out}
        for part, said in stated(self):  # not what it released
            asked = {"kind", *(field.name for field in dataclasses.fields(part))}
            kept[part.name] = {name: value for name, value in said.items() if name in asked}
        kept["assumptions"] = [entry for entry in self["assumptions"] if "epsilon_spent" not in entry]
        kept["not_covered"] = [entry for entry in self["not_covered"] if entry != SPENT_NOT_COVERED]
        return PrivacyStatement(kept)


def run_statement(header: RunHeader, ledger: ParticipationRecord) -> PrivacyStatement:
    """Compute the statement of a run from its header and its verified record of participation.

    Args:
        header: the run's description, usually ``RunHeader.from_dict(ledger.header)``.
        ledger: open for reading or writing; a run in progress may go on committing.

    Raises:
        LedgerError: the record contradicts the header.
        RuntimeError: the two accountants disagree.

    Guarantees:
        Without amplification epsilon_spent ≤ epsilon_so_far ≤ epsilon (to a relative 1e-9); with it
        epsilon_spent is at most what (k, b) allows an observer of the cohorts, epsilon_so_far ≤ epsilon ≤
        epsilon_known_cohorts, and δ(noise, epsilon) was computed again. Otherwise no statement is made.
    """
    plan, privacy, recorded = header.plan, header.plan.privacy, ledger.summary()
    if ledger.participation != plan.participation:
        raise LedgerError(
            f"the header plans {plan.participation} and the ledger was created for {ledger.participation}."
        )
    if recorded.users > plan.users:
        raise LedgerError(f"the ledger holds {recorded.users} users; the header says there are {plan.users}.")
    check_sensitivity(plan)
    planned, spent = planned_privacy(plan, recorded.rounds), run_spent(plan, ledger)
    private = plan.noise_multiplier > 0
    metrics = ledger.metrics() if any(part.columns for part in plan.parts) else {}
    unit, amplified = privacy.words, plan.amplification
    return PrivacyStatement(
        {
            "unit": unit.name,
            "user_namespace": privacy.user_namespace,
            "adjacency": privacy.adjacency,
            "mechanism": plan.mechanism.name if private else "none",
            "params": dict(plan.mechanism.params),
            "second_moment": plan.second.facts(plan.second_noise_std),
            "dimension": header.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": recorded.rounds,
            "sampling": header.sampling,
            "amplification": None if amplified is None else amplified.to_dict(),
            "users": plan.users,
            "users_per_round": plan.cohorts.users_per_round,
            "clip_norm": privacy.clip_norm,
            **{part.name: dict(part.facts(metrics)) for part in plan.parts},
            "noise_multiplier": plan.noise_multiplier,
            "noise_std": plan.noise_std,
            "sensitivity": plan.sensitivity.value,
            "sensitivity_kind": plan.sensitivity.kind,
            "sensitivity_case": plan.sensitivity.case,
            "delta": privacy.delta,
            "epsilon": finite(planned.epsilon),
            "epsilon_known_cohorts": finite(planned.known_cohorts),
            "epsilon_so_far": None if planned.so_far is None else finite(planned.so_far),
            "mu": gaussian_mu(plan.noise_multiplier) if private else None,
            **spent.figures(privacy.delta, plan.users, planned.known_so_far),
            "users_participated": recorded.users,
            "actual_max_participations": recorded.max_participations,
            "actual_min_separation": recorded.min_separation,
            "noise_key": header.key_fingerprint if private else None,
            "noise_key_public": header.key_public if private else None,
            "trust": unit.say(TRUST[header.clipped_by]),
            "public_inputs": [dict(entry) for entry in header.public_inputs],
            "not_private": list(OPERATORS),
            "assumptions": [
                *([] if amplified is None else [SECRECY]),
                unit.distinct,
                *map(unit.say, _assumptions(header)),
            ],
            "not_covered": [
                *unit.not_covered,
                *(NOT_PRIVATE[name] for name in header.not_private),
                *map(unit.say, (*NOT_COVERED, *ALWAYS_NOT_COVERED)),
                SPENT_NOT_COVERED,
            ],
            "secret": [*([] if amplified is None else [SECRET_COHORTS]), *map(unit.say, SECRETS)],
            "software": header.software,
        }
    )


def _assumptions(header: RunHeader) -> list[str]:
    """Under what the figures hold, of any unit."""
    return [
        *ASSUMPTIONS,
        *([SHARED_WORKERS] if header.shares_workers else []),
        *([SHARED_TIME] if header.shares_time else []),
        *([INEXACT_GROUPS] if header.groups_inexactly else []),
        *([AVAILABLE] if isinstance(header.plan.cohorts, AvailableCohorts) else []),
        SPENT_ASSUMPTION,
        *(text for part in header.plan.parts for text in part.assumptions),
    ]
