"""The privacy statement of a run, computed from its header and its record of participation alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import adjacency_factor, gaussian_mu
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import LedgerError
from fedmf.records.ledger import Ledger
from fedmf.records.spent import Spent, finite
from fedmf.records.statement import (
    ALWAYS_NOT_COVERED,
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)
from fedmf.runs.header import RunHeader
from fedmf.runs.plan import Plan
from fedmf.runs.words import (
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
    TRUST,
)
from fedmf.typing import Vector

#: Relative, of a few operations on doubles.
_ROUNDING: Final = 2.0**-50


def run_statement(header: RunHeader, ledger: Ledger) -> PrivacyStatement:
    """Compute the statement of a run from its header and its verified record of participation.

    Args:
        header: the run's description, usually ``RunHeader.from_dict(ledger.header)``.
        ledger: open for reading or writing; a run in progress may continue to commit.

    Raises:
        LedgerError: the record contradicts the header.
        RuntimeError: the two accountants disagree.

    Guarantees:
        Without amplification epsilon_spent ≤ epsilon_so_far ≤ epsilon (to a relative 1e-9); with it
        epsilon_spent is at most what (k, b) allows an observer of the cohorts, epsilon_so_far ≤ epsilon ≤
        epsilon_known_cohorts, and δ(noise, epsilon) was computed again. Otherwise no statement is made.
    """
    plan, privacy, recorded = header.plan, header.plan.privacy, ledger.histories
    if ledger.participation != plan.participation:
        raise LedgerError(
            f"the header plans {plan.participation} and the ledger was created for {ledger.participation}."
        )
    if len(recorded) > plan.users:
        raise LedgerError(f"the ledger holds {len(recorded)} users; the header says there are {plan.users}.")
    planned, spent = plan.allowed(ledger.released), run_spent(plan, ledger)
    private = plan.noise_multiplier > 0
    unit, amplified = plan.words, plan.amplification
    return PrivacyStatement(
        {
            "unit": unit.name,
            "adjacency": privacy.adjacency,
            "mechanism": plan.mechanism.name if private else "none",
            "params": dict(plan.mechanism.params),
            "second_moment": None if plan.second is None else plan.second.facts(plan.second_noise_std),
            "dimension": header.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": ledger.released,
            "sampling": header.sampling,
            "amplification": None if amplified is None else amplified.to_dict(),
            "users": plan.users,
            "users_per_round": plan.cohorts.users_per_round,
            "clip_norm": privacy.clip_norm,
            "statistics": [
                {**statistic.to_dict(), "name": statistic.name, "description": statistic.description}
                for statistic in plan.statistics
            ],
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
            "users_participated": len(recorded),
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
        *(entry for statistic in header.plan.statistics for entry in statistic.assumptions),
    ]


def run_spent(plan: Plan, ledger: Ledger) -> Spent:
    """μ of every user in a run's ledger, from the rounds that the user joined; made for millions of users.

    The first T rounds release (up to post-processing) the first T rows of C·G + σz. A user with rounds π
    moves C·G by at most a·s, where a is 1 for zero-out and 2 for replace-one and s = ‖Σ_{j∈π} C_{:T,j}‖
    (where columns of C have negative inner products, the sound bound that `pattern_sensitivity` gives
    instead; for a pair of streams that of `PairRelease`).

    Args:
        plan: of the run.
        ledger: verified against the plan's contract.

    Guarantees:
        μ is never below the exact value of the user's rounds. It is a guarantee only if neither participation
        nor the end of the run depends on data; the planned ε holds without that assumption.

    References:
        Balle, Wang (2018), Theorem 8; Denisov et al. (2022), "Improved Differential Privacy for SGD via
        Optimal Private Linear Operators on Adaptive Streams", Theorem 2.1.
    """
    rounds, keys = ledger.participations()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(starts, append=keys.size)
    sensitivities = np.zeros(starts.size)
    for length in np.unique(lengths).tolist():  # equal patterns are computed once
        users = np.flatnonzero(lengths == length)
        patterns, which = distinct_patterns(rounds[starts[users][:, None] + np.arange(length)])
        sensitivities[users] = plan.release.of_equal_length(patterns, ledger.released)[which]
    return Spent(ledger.histories.names, _mu(sensitivities, plan))


def distinct_patterns(table: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The different rows of a table of patterns, and which of them each row is.

    >>> distinct_patterns(np.array([[3, 5], [0, 4], [3, 5]], dtype=np.int32))
    (array([[0, 4],
           [3, 5]], dtype=int32), array([1, 0, 1]))
    """
    # Rows as strings of big-endian bytes: they sort as the tuples do, much faster than column by column.
    row = np.dtype((np.void, 4 * table.shape[1]))
    opaque = np.ascontiguousarray(table.astype(">i4")).view(row).reshape(-1)
    distinct, which = np.unique(opaque, return_inverse=True)
    return distinct.view(">i4").reshape(-1, table.shape[1]).astype(np.int32), which


def _mu(sensitivities: NDArray[np.float64], plan: Plan) -> Vector:
    if plan.relative_noise_std == 0:
        return np.where(sensitivities > 0, math.inf, 0.0)
    return sensitivities * (
        adjacency_factor(plan.privacy.adjacency) / plan.relative_noise_std * (1 + _ROUNDING)
    )
