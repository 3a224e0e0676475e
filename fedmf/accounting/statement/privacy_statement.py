"""The privacy statement of a run, computed from its ledger alone."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedmf.accounting.gaussian import adjacency_factor, certified_epsilon
from fedmf.accounting.realised import EpsilonBin, RealisedPrivacy, realised_privacy
from fedmf.accounting.recorded import ParticipationRecord
from fedmf.accounting.release import RunRelease
from fedmf.accounting.statement.amplified_claim import claimed_epsilon
from fedmf.accounting.statement.fields import described, recorded
from fedmf.accounting.statement.header import RunHeader
from fedmf.accounting.statement.text import render
from fedmf.accounting.statement.words import (
    ASSUMPTIONS,
    FEDERATED_EVALUATION,
    NOT_COVERED,
    SECRECY,
    SECRET_COHORTS,
    SECRETS,
)
from fedmf.errors import LedgerError
from fedmf.participation import Participation
from fedmf.version import SOFTWARE

__all__ = ["PrivacyStatement", "build_statement"]

# ε of the worst recorded pattern and of the worst allowed pattern are summed in different orders.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class PrivacyStatement:
    """One record that says what a run guarantees to whom, under which assumptions, and what it leaves out.

    ``None`` stands for "infinite" in the privacy fields of a run without noise.

    Attributes:
        rounds: n, the horizon.
        rounds_released: T, how many rounds are committed; ``rounds_empty`` of them held no user.
        max_participations: k, planned; ``realised_max_participations`` is what the ledger holds.
        min_separation: b, planned; ``realised_min_separation`` is None if nobody joined twice.
        users: all users of the run; ``users_participated`` of them are in the ledger.
        noise_multiplier: σ for sensitivity 1.
        noise_std: absolute standard deviation of the streamed z, ζ·σ·sensitivity·(adjacency factor).
        epsilon_requested: what the run was asked for.
        epsilon_planned: what its noise gives at the full horizon to the worst user the contract allows;
            with amplification, only while the cohorts stay secret.
        epsilon_planned_known_cohorts: the same against an observer who knows in which rounds each user took
            part; equal to epsilon_planned without amplification.
        epsilon_planned_so_far: the same for the rounds released; None once all are.
        epsilon_realised: ε of the worst recorded user against an observer who knows its rounds; with
            amplification it may exceed epsilon_planned.
        epsilon_realised_quantiles: quantile ↦ ε over all users.
        epsilon_realised_histogram: bins of ε over all users.
        mu_planned: the planned guarantee as μ-GDP; ``rho_planned`` as ρ-zCDP. Both hold together with (ε, δ)
            and, never amplified, also where cohorts are known.
        amplification: how the amplified ε was bounded; None without amplification.
        second_moment: the second stream that the same ε covers: its form, which moment, number of features,
            λ (weight), C₂ (mechanism, params) and the absolute standard deviation of its z, for features
            summed over the cohort; None for a run that releases sums alone.
        mu_realised: μ of the worst recorded user; ``rho_realised`` likewise.
        realised_patterns: how many different patterns of rounds the ledger holds.
        realised_worst_pattern: the 0-based rounds of a worst user.
        noise_key_public: whether the noise follows from a published seed; None in a run without noise.
        secret: what must stay secret for the guarantee to hold.
        software: what the run was started with; ``stated_by`` is what computed this statement.
    """

    unit: str
    adjacency: str
    mechanism: str
    params: dict[str, float | int]
    dimension: int
    rounds: int
    rounds_released: int
    rounds_empty: int
    max_participations: int
    min_separation: int
    realised_max_participations: int
    realised_min_separation: int | None
    sampling: str
    users: int
    users_participated: int
    cohort_size: int
    clip_norm: float
    noise_multiplier: float
    sensitivity: float
    sensitivity_kind: str
    sensitivity_case: str
    noise_std: float
    delta: float
    epsilon_requested: float | None
    epsilon_planned: float | None
    epsilon_planned_known_cohorts: float | None
    epsilon_planned_so_far: float | None
    epsilon_realised: float | None
    epsilon_realised_quantiles: dict[str, float | None]
    epsilon_realised_histogram: tuple[EpsilonBin, ...]
    mu_planned: float | None
    rho_planned: float | None
    mu_realised: float | None
    rho_realised: float | None
    realised_patterns: int
    realised_worst_pattern: tuple[int, ...]
    amplification: dict[str, Any] | None
    second_moment: dict[str, Any] | None
    noise_key: str
    noise_key_public: bool | None
    trust: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    secret: tuple[str, ...]
    software: str
    stated_by: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict of finite numbers, strings, lists, dicts and None."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> str:
        """The dict as indented JSON, ending in a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the JSON so that the file holds either the old statement or this one, never a part.

        Raises:
            OSError: the file cannot be written; the old one is untouched.
        """
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def render_text(self) -> str:
        """The statement as plain text for a terminal."""
        return render(self.to_dict())


def build_statement(header: RunHeader, ledger: ParticipationRecord) -> PrivacyStatement:
    """Compute the statement of a run from its header and its verified ledger.

    Args:
        header: the run's description, usually ``RunHeader.from_dict(ledger.header)``.
        ledger: open for reading or writing; a run in progress may go on committing.

    Raises:
        LedgerError: the ledger fails its replay, or contradicts the header.
        RuntimeError: the two accountants disagree.

    Guarantees:
        Without amplification ε_realised ≤ ε_planned_so_far ≤ ε_planned (to a relative 1e-9); with it
        ε_realised is at most what (k, b) allows an observer of the cohorts, ε_planned_so_far ≤ ε_planned ≤
        ε_planned_known_cohorts, and δ(noise, ε_planned) was computed again. Otherwise no statement is made.
    """
    if ledger.participation != header.participation:
        raise LedgerError(
            f"the header plans {header.participation} and the ledger was created for {ledger.participation}."
        )
    with ledger.snapshot():
        found = ledger.replay()
        patterns = ledger.patterns()
    if found.users > header.users:
        raise LedgerError(f"the ledger holds {found.users} users; the header says there are {header.users}.")
    release = header.release
    _check_sensitivity(header, release)
    noise, delta = header.relative_noise_std, header.delta
    realised = realised_privacy(patterns, release, noise, delta, found.rounds, header.adjacency, header.users)
    known = certified_epsilon(header.noise_multiplier, delta) if noise else math.inf
    known_so_far = _planned_so_far(header, release, found.rounds, known)
    limit = known if known_so_far is None else known_so_far
    planned = claimed_epsilon(header, known)
    so_far = None if known_so_far is None else min(known_so_far, planned)
    _check_within("epsilon_realised", realised.epsilon, limit)
    return PrivacyStatement(
        **described(header),
        **recorded(found),
        epsilon_planned=_finite(planned),
        epsilon_planned_known_cohorts=_finite(known),
        epsilon_planned_so_far=None if so_far is None else _finite(so_far),
        epsilon_realised=_finite(min(realised.epsilon, limit)),
        epsilon_realised_quantiles=_quantiles(realised, limit),
        epsilon_realised_histogram=realised.histogram,
        mu_realised=_finite(realised.mu),
        rho_realised=_finite(0.5 * realised.mu**2),
        realised_patterns=patterns.patterns,
        realised_worst_pattern=realised.worst_pattern,
        assumptions=ASSUMPTIONS if header.amplification is None else (SECRECY, *ASSUMPTIONS),
        not_covered=(FEDERATED_EVALUATION, *NOT_COVERED) if header.federated_evaluation else NOT_COVERED,
        secret=SECRETS if header.amplification is None else (SECRET_COHORTS, *SECRETS),
        stated_by=SOFTWARE,
    )


def _check_sensitivity(header: RunHeader, release: RunRelease) -> None:
    """The noise was scaled by the header's sensitivity; it must be at least the one that C has."""
    if release.rounds != header.participation.rounds:
        raise LedgerError(
            f"the header's factorization has n={release.rounds} rounds; the run was planned for "
            f"{header.participation.rounds}."
        )
    recomputed = release.stated(header.participation).value
    if header.sensitivity < recomputed * (1 - _TOLERANCE):
        raise LedgerError(
            f"the header states sensitivity {header.sensitivity!r}, below the {recomputed!r} of its "
            "factorization. The noise was too small for the ε that was asked for."
        )


def _planned_so_far(header: RunHeader, release: RunRelease, released: int, planned: float) -> float | None:
    """ε that the contract allows the worst user after ``released`` rounds; None once all are released."""
    n, k, b = dataclasses.astuple(header.participation)
    if released == n:
        return None
    if released == 0:
        return 0.0
    if header.noise_multiplier == 0:
        return math.inf
    fitting = Participation.as_many_as_fit(released, b).max_participations
    block = Participation(released, min(k, fitting), b)
    spent = release.leading(released).stated(block).value * adjacency_factor(header.adjacency)
    return min(planned, certified_epsilon(header.relative_noise_std / spent, header.delta))


def _check_within(name: str, epsilon: float, limit: float) -> None:
    if epsilon > limit + _TOLERANCE * max(1.0, limit):
        raise LedgerError(
            f"{name} is {epsilon!r}, above the planned {limit!r}. The run's records contradict its plan; "
            "no privacy statement is made."
        )


def _quantiles(realised: RealisedPrivacy, limit: float) -> dict[str, float | None]:
    """Quantiles of ε; the limit takes away the rounding that the check above let pass."""
    return {f"{q:g}": _finite(min(epsilon, limit)) for q, epsilon in realised.quantiles.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
