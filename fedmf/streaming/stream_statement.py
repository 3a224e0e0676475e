"""The privacy statement of a stream."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from fedmf.accounting.gaussian import certified_epsilon, gaussian_mu
from fedmf.statements.composition import PrivacyCost, UserLosses
from fedmf.statements.privacy import UNITS
from fedmf.statements.statement import (
    ALWAYS_NOT_COVERED,
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)
from fedmf.streaming.state import StreamState
from fedmf.streaming.stream_plan import StreamPlan

NOT_COVERED: Final = (
    (
        "participation: the noise does not hide the number and order of the rows, who the users"
        " are, or in which steps they took part; the guarantee does not cover publishing user ids"
        " or the state directory"
    ),
    (
        "choices made after looking at the data, such as clip norm, columns or scaling; and further"
        " runs on the same users, each of which releases more about them than this epsilon counts"
    ),
    (
        "the time at which the stream was stopped, if the content of rows determined it; a"
        " truncated input; the operator's counts (operator.json)"
    ),
    (
        "two copies of the state directory or of the running process that both continued: their"
        " releases together"
    ),
    *ALWAYS_NOT_COVERED,
    SPENT_NOT_COVERED,
)
SECRETS: Final = (
    (
        "the noise key (noise.key) and all its backups, even after the stream has ended: anyone who"
        " has the key can subtract the noise"
    ),
    (
        "the rest of the state directory (stream.sqlite, operator.json): it contains past noise,"
        " who took part in which step, and exact counts"
    ),
    "the input, and all copies and logs of its rows, which are not protected",
)
_EACH_ANOTHER: Final = (
    "every row belongs to a different person: no user column was given, and a person with several"
    " rows is protected less, only for each row separately"
)
_IDS: Final = UNITS["user"].distinct
_READABLE_IDS: Final = (
    "the user of every row can be read: a row with an unreadable user belongs to no user, and"
    " counts as zeros in its step"
)
_PUBLIC_LAYOUT: Final = (
    "the names and number of columns are public: they come from the header of the input (of JSON"
    " lines the form of the first row), or from the program that pushes rows"
)
_PUBLIC_LABELS: Final = (
    "{labels} of every row, and whether it can be read, was declared public and does not depend on"
    " the protected values"
)
_LABELS: Final = (
    "information in {labels} of a row: it was declared public and is released with the row without"
    " noise. A row that cannot be split into columns has none, which is visible"
)
_BESIDE: Final = "published with each release, without noise"
_PUBLIC_ROWS: Final = (
    "the horizon (the number of steps) was counted from the input: the number of its rows that"
    " count, which depends on their order and their users, is public"
)


def costs_of(state: StreamState) -> PrivacyCost:
    """What a stream guarantees, in the fields of `run_statement`, and what it cost each of its
    users.

    A user's μ is for the worst steps of as many as it took part in, as far apart as any two.
    Without a user column it is all that is allowed. Nothing here depends on rows' values.

    Args:
        state: of the stream; what was committed counts.

    Raises:
        RuntimeError: the two accountants disagree.

    Guarantees:
        epsilon_spent ≤ epsilon.
    """
    plan = state.plan
    key = state.key
    made = plan.mechanism
    settings = plan.settings
    sigma = plan.noise_multiplier
    told = settings.user_column is not None
    planned = certified_epsilon(sigma, settings.delta, settings.epsilon)
    times, keys = state.ledger.participations()
    apart = np.diff(times)[np.diff(keys) == 0]
    counts = np.bincount(keys)
    separation = int(apart.min()) if apart.size else None
    spent = UserLosses([], np.array([gaussian_mu(sigma)]))
    if told:
        sizes, of = np.unique(counts, return_inverse=True)
        mu = np.array(
            [gaussian_mu(plan.multiplier_under(size, separation)) for size in sizes.tolist()]
        )
        spent = UserLosses(state.ledger.histories.names[: len(counts)], mu[of])
    second = {
        "moment": settings.second_moment,
        "mechanism": None if made.second is None else plan.strategies[-1],
        "params": None if made.second is None else plan.params[-1],
        "workload": settings.workloads[-1],
        "weight": made.weight,
        "noise_std": made.second_std,
    }
    labels = " and ".join(settings.labels)
    statement = PrivacyStatement(
        {
            "unit": "user",
            "user_column": settings.user_column,
            "adjacency": made.users.adjacency,
            "mechanism": plan.strategies[0],
            "params": plan.params[0],
            "method": settings.method,
            "workload": settings.workloads[0],
            "second_moment": second,
            "dimension": plan.layout.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": state.position.step,
            "release_every": plan.every,
            "rows_of_user_in_a_release": plan.rows_of_user,
            "sampling": "none: no amplification claimed",
            "amplification": None,
            "users": None,
            "users_per_round": 1,
            "clip_norm": made.users.norm_bound,
            "noise_multiplier": sigma,
            "noise_std": made.first_std,
            "sensitivity": plan.sensitivity.value,
            "sensitivity_kind": plan.sensitivity.kind,
            "sensitivity_case": plan.sensitivity.case,
            "unit_bits": list(made.rounding.bits),
            "rounding": plan.rows_of_user * made.rounding.movement * made.users.norm_bound,
            "failure": made.rounding.failure,
            "delta": settings.delta,
            "epsilon": planned,
            "epsilon_known_cohorts": planned,
            "epsilon_so_far": None,
            "mu": gaussian_mu(sigma),
            **spent.figures(settings.delta, len(counts), planned),
            "users_participated": len(counts) if told else None,
            "actual_max_participations": int(counts.max(initial=0)) if told else None,
            "actual_min_separation": separation if told else None,
            "noise_key": key.fingerprint,
            "noise_key_public": key.public,
            "public_inputs": [
                {"name": name, "value": f"column {column!r}, {_BESIDE}", "source": "declared"}
                for name, column in settings.labels.items()
            ],
            "not_private": list(OPERATORS),
            "assumptions": _assumptions(plan),
            "not_covered": [
                *([_LABELS.format(labels=labels)] if labels else []),
                *NOT_COVERED,
            ],
            "secret": list(SECRETS),
            "software": plan.software,
        }
    )
    return PrivacyCost(str(state.directory), statement, spent)


def _assumptions(plan: StreamPlan) -> list[str]:
    named = plan.settings.user_column is not None
    assumed = [_IDS, _READABLE_IDS, SPENT_ASSUMPTION] if named else [_EACH_ANOTHER]
    assumed.append(_PUBLIC_LAYOUT)
    if plan.settings.labels:
        assumed.append(_PUBLIC_LABELS.format(labels=" and ".join(plan.settings.labels)))
    return assumed if plan.settings.rounds is not None else [*assumed, _PUBLIC_ROWS]
