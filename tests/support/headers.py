"""Headers of runs that were never run, and their ledgers: what a statement is computed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.cohorts import CyclicCohorts
from fedmf.ledger.ledger import Ledger
from fedmf.matrices.factorization import BuiltMechanism, Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.noise.units import NOTHING, calibrated
from fedmf.participation import Participation
from fedmf.release.plan import Plan
from fedmf.runs.directory import RunHeader
from fedmf.runs.plan_fields import plan_fields
from fedmf.runs.run_statement import run_statement
from fedmf.runs.statistics.clip_norm import FixedClipping
from fedmf.statements.privacy import UserLevel
from fedmf.statements.statement import PrivacyStatement
from support.ledgers import begin

CONTRACT = Participation(rounds=6, max_participations=2, min_separation=3)
FACTORIZATION = InverseToeplitz([1.0, -0.8], 6)
PLANNED = sensitivity_of(FACTORIZATION, CONTRACT)
DELTA = 1e-5
DIMENSION = 1000


def make_header(
    contract: Participation = CONTRACT,
    factorization: Factorization = FACTORIZATION,
    cohort_size: int = 2,
    **changes: Any,
) -> RunHeader:
    """The header of a run with ε = 7 and σ = 0.7.

    Args:
        contract: (n, k, b).
        factorization: C.
        cohort_size: m.
        changes: fields of the plan, of its privacy, of its sensitivity ("sensitivity_value") or of
            the header.
    """
    privacy = changes.pop("privacy", UserLevel(clip_norm=0.5, delta=DELTA, epsilon=7.0))
    sensitivity = sensitivity_of(factorization, contract)
    privacy = dataclasses.replace(privacy, **_taken(changes, privacy))
    cohorts = CyclicCohorts(rounds=contract.rounds, users_per_round=cohort_size)
    values: dict[str, Any] = {
        **plan_fields(privacy, cohorts, ()),
        "users": 5,
        "participation": contract,
        "mechanism": BuiltMechanism("cgd", {"lambda": 0.8}, factorization),
        "sensitivity": dataclasses.replace(
            sensitivity, **_taken(changes, sensitivity, "sensitivity_")
        ),
        "noise_multiplier": 0.7,
        "dimension": DIMENSION,
        "relative_noise_std": 0.0,
        "rounding": NOTHING,
    }
    plan = with_noise(Plan(**{**values, **_taken(changes, Plan)}))
    header: dict[str, Any] = {
        "run": {
            "privacy": privacy.to_dict(),
            "cohorts": cohorts.to_dict(),
            "execution": {"messages": "per-user"},
            "clipping": FixedClipping().to_dict(),
            "extra_releases": [],
        },
        "configuration": "",
        "arrays": (("w", (DIMENSION,)),),
        "key_fingerprint": "ab12",
        "key_public": False,
        "clipped_by": "server",
    }
    return RunHeader(**{**header, "plan": plan, **changes})


def with_noise(plan: Plan) -> Plan:
    """The plan with the noise and units that its σ and sensitivity need."""
    reach = plan.sensitivity.value * adjacency_factor(plan.adjacency)
    std, rounding = calibrated(plan.parts, reach, plan.noise_multiplier)
    return dataclasses.replace(plan, relative_noise_std=std, rounding=rounding)


def _taken(changes: dict[str, Any], value: Any, prefix: str = "") -> dict[str, Any]:
    """Those changes that are fields of a value; they are taken away from the others."""
    names = [field.name for field in dataclasses.fields(value) if prefix + field.name in changes]
    return {name: changes.pop(prefix + name) for name in names}


def record(path: Path, header: RunHeader, cohorts: Iterable[Sequence[str]]) -> None:
    """A ledger whose rounds had these users."""
    with begin(path, header.plan.participation, header.to_dict()) as ledger:
        for index, users in enumerate(cohorts):
            ledger.commit_round(index, list(users))


def read(path: Path) -> PrivacyStatement:
    """The statement of a ledger, from disk alone."""
    with Ledger.open(path, read_only=True) as ledger:
        return run_statement(RunHeader.from_dict(ledger.header), ledger)
