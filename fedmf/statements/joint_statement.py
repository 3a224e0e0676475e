"""The privacy of several branches of one run together: copies of its directory that all went on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

from fedmf.accounting import (
    UNITS,
    JointRecord,
    ParticipationRecord,
    RealisedPrivacy,
    Verdict,
    continuations_of,
    realised_privacy,
)
from fedmf.errors import LedgerError
from fedmf.parts import OWN_STREAMS, OwnStream
from fedmf.statements.document import Document, joint_fault_lines, lists_of, promise, up
from fedmf.statements.header import RunHeader
from fedmf.statements.own_stream_part import OwnRecords
from fedmf.statements.plain import together
from fedmf.statements.plan import Plan
from fedmf.statements.privacy_statement import PrivacyStatement, build_statement
from fedmf.statements.words import REALISED_ASSUMPTION

_ASSUMPTIONS: Final = (
    "nothing else was released: these directories are all continuations of the run that released anything",
    "no process of the run was copied while it ran: every branch drew noise of its own (from openings of its "
    "own)",
    REALISED_ASSUMPTION,
)


@dataclass(frozen=True, eq=False)
class Branch:
    """One directory of a run: its name, header and records, open for reading, and the verdict on them."""

    name: str
    header: RunHeader
    record: ParticipationRecord
    own_records: OwnRecords = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(frozen=True, eq=False)
class JointStatement:
    """What several branches of one run cost its users together.

    Attributes:
        names: of the branches.
        statements: what each released from the beginning of the run, alone.
        shared: rounds that all of them have in common.
        released: rounds that were released in all, each shared one counted once.
        realised: ε of each user, from all rounds of all branches in which the user took part.
        own_mus: of each own stream, as of private evaluations, in all branches, worst user, by its name.
    """

    names: tuple[str, ...]
    statements: tuple[PrivacyStatement, ...]
    shared: int
    released: int
    realised: RealisedPrivacy
    own_mus: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; everything in it comes from the record of participation and is not private."""
        plan, realised = self.statements[0].header.plan, self.realised
        described = self.statements[0].to_dict()
        same = ("unit", "user_namespace", "adjacency", "mechanism", "params", "rounds", "sampling", "users")
        return {
            "branches": [
                {
                    "directory": name,
                    **({} if statement.verdict is None else {"records": statement.verdict.to_dict()}),
                    "rounds_released": statement.recorded.rounds,
                    "epsilon_realised": _finite(statement.realised.epsilon),
                    "epsilon_realised_median": _finite(statement.realised.quantiles[0.5]),
                }
                for name, statement in zip(self.names, self.statements, strict=True)
            ],
            **{name: described[name] for name in same},
            "rounds_shared": self.shared,
            "rounds_released": self.released,
            "delta": plan.privacy.delta,
            "epsilon_realised": _finite(realised.epsilon),
            "epsilon_realised_median": _finite(realised.quantiles[0.5]),
            "epsilon_realised_quantiles": {f"{q:g}": _finite(e) for q, e in realised.quantiles.items()},
            "mu_realised": _finite(realised.mu),
            "rho_realised": _finite(realised.rho),
            "users_participated": realised.participants,
            **{f"{name}_mu": self.own_mus.get(name) for name in OWN_STREAMS},
            "noise_key": described["noise_key"],
            "assumptions": list(map(plan.privacy.words.say, _ASSUMPTIONS)),
            "not_private": "all of this statement",
            "stated_by": self.statements[0].stated_by,
        }

    def document(self) -> Document:
        """In words."""
        s = self.to_dict()
        unit, faults = UNITS[s["unit"]], joint_fault_lines(s["branches"])
        rounds = f"{s['rounds_released']} released in all, of which {s['rounds_shared']} are shared by all "
        rounds += "branches and counted once"
        return Document(
            f"{len(self.names)} branches of one run together: the worst {unit.name} has "
            f"{promise(s['epsilon_realised'], s['delta'], s['adjacency'])} against anyone who sees all that "
            "they released (not private).",
            [
                ("epsilon realised", f"{up(s['epsilon_realised'])} (worst {unit.name} of all branches)"),
                (f"over {unit.plural}", f"half at most {up(s['epsilon_realised_median'])}"),
                ("mu, rho realised", f"{up(s['mu_realised'])}, {up(s['rho_realised'])}"),
                ("rounds", rounds),
                ("took part", f"{s['users_participated']} of {s['users']} {unit.plural}"),
                ("noise key", s["noise_key"]),
            ],
            lists_of(s),
            f"Stated by {s['stated_by']}.",
            protects=True,
            plain=together(unit.name),
            first=faults,
            whole=not faults,
            members=[
                f"{b['directory']}: {b['rounds_released']} rounds, epsilon {up(b['epsilon_realised'])} "
                f"(worst {unit.name}), half at most {up(b['epsilon_realised_median'])}"
                for b in s["branches"]
            ],
        )


def build_joint_statement(branches: Sequence[Branch]) -> JointStatement:
    """Account for several branches of one run together.

    The rounds in which two records agree from the beginning, by their chain values, are one release; from
    there on the branches have noise of their own. docs/forks.md proves the bound.

    Args:
        branches: two or more directories of one run; one may be an earlier state of another.

    Raises:
        LedgerError: they are not of one run, a record fails its replay, two branches drew noise from one
            opening, or no theorem covers the run: a public seed, no noise, secret cohorts.

    Guarantees:
        Each ε is at least that of any single branch, and at most that of all branches composed.
    """
    first = branches[0]
    for other in branches[1:]:
        if other.header.to_dict() != first.header.to_dict():
            raise LedgerError(
                f"{other.name} must be a branch of the run in {first.name} to be accounted for with it; got "
                "another run. Account for them one by one."
            )
    _require_covered(first.header)
    statements = tuple(
        replace(build_statement(b.header, b.record, b.own_records), verdict=b.verdict) for b in branches
    )
    plan = first.header.plan
    _require_own_openings([(branch.name, branch.record) for branch in branches])
    joint = _joint([branch.record for branch in branches])
    beside = {own.name: _own_mu(plan, own, branches) for own in plan.own_streams}
    realised = realised_privacy(
        joint.patterns,
        plan.release,
        plan.relative_noise_std,
        plan.privacy.delta,
        joint.branches,
        plan.privacy.adjacency,
        plan.users,
        math.hypot(*beside.values()),
    )
    shared = _shared([branch.record for branch in branches])
    names = tuple(branch.name for branch in branches)
    return JointStatement(names, statements, shared, joint.branches.rounds, realised, beside)


def _require_covered(header: RunHeader) -> None:
    plan = header.plan
    if plan.noise_multiplier == 0:
        raise LedgerError("branches of a run without noise have no privacy to account for.")
    if header.key_public:
        raise LedgerError(
            "branches of a run with a public noise seed repeat its noise: their difference is what users "
            "sent."
        )
    if plan.amplification is not None:
        raise LedgerError(
            f"branches of a run with secret {plan.cohorts.kind} cohorts cannot be accounted for together: "
            "they share each user's draws, and no accountant covers the amplified pair."
        )


def _joint(records: Sequence[ParticipationRecord]) -> JointRecord:
    return JointRecord.of([entry for record in records for entry in continuations_of(record)])


def _own_mu(plan: Plan, own: OwnStream, branches: Sequence[Branch]) -> float:
    """μ of the worst user in all releases of a stream together."""
    named = [(branch.name, branch.own_records[own.name]) for branch in branches]
    _require_own_openings(named)
    joint = _joint([record for _, record in named])
    noise, adjacency = own.relative_noise_std(plan.privacy.adjacency), plan.privacy.adjacency
    return realised_privacy(
        joint.patterns, own.release, noise, plan.privacy.delta, joint.branches, adjacency
    ).mu


def _shared(records: Sequence[ParticipationRecord]) -> int:
    """How many first rounds all records have in common."""
    chains = [[chain for _, chain in record.chains()] for record in records]
    together = zip(*chains, strict=False)
    shared = 0
    for entries in together:
        if len(set(entries)) > 1:
            break
        shared += 1
    return shared


def _require_own_openings(named: Sequence[tuple[str, ParticipationRecord]]) -> None:
    """See that no two branches drew noise of differing rounds from the same random bits."""
    for (name, record), (other_name, other) in combinations(named, 2):
        shared = _shared([record, other])
        both = _used_from(record, shared) & _used_from(other, shared)
        if both:
            raise LedgerError(
                f"{name} and {other_name} drew the noise of different rounds from one opening, as a copy of "
                "a living process would: their difference is what users sent, and no epsilon holds."
            )


def _used_from(record: ParticipationRecord, first: int) -> set[bytes]:
    """The random bits of all openings from which rounds ``first`` and later of a record have their noise."""
    openings, rounds = record.openings(), len(record.chains())
    ends = [*(opening.first_round for opening in openings[1:]), rounds]
    return {
        opening.fresh
        for opening, end in zip(openings, ends, strict=False)
        if max(first, opening.first_round) < end
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
