"""The privacy statement of a stream, computed from its plan and its ledger.

Texts for the operator stand here; the fields are those of `run_statement`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import certified_epsilon, gaussian_mu
from fedmf.data.schema import Number
from fedmf.ledger.released_integers import DIGESTS, FOLDER
from fedmf.statements.composition import PrivacyCost, UserLosses
from fedmf.statements.privacy import UNITS
from fedmf.statements.statement import (
    ALWAYS_NOT_COVERED,
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)
from fedmf.statements.written_files import check_contents, check_released, check_statement
from fedmf.streaming.private_release import Renderer
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
_ROWS_ARE_USERS: Final = (
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
_IDS_IN_STATE: Final = (
    "publishing user ids or the state directory, or whether there is any input for a period"
)
_PUBLIC_CALENDAR: Final = (
    "the calendar is public, and periods were closed by a clock or on fixed dates, never because of"
    " rows"
)
_PUBLIC_LABELS: Final = (
    "{labels} of every row, and whether it can be read, was declared public and does not depend on"
    " the protected values"
)
_LABELS: Final = (
    "information in {labels} of a row: it was declared public and is released with the row without"
    " noise. A row that cannot be split into columns has none, which is visible"
)
_PUBLISHED: Final = "published with each release, without noise"
_PUBLIC_ROWS: Final = (
    "the horizon (the number of steps) was counted from the input: the number of its rows that"
    " count, which depends on their order and their users, is public"
)


def costs_of(state: StreamState) -> PrivacyCost:
    """The privacy statement of a stream, in the fields of `run_statement`, and each user's μ.

    A user's μ is for as many steps as it took part in, no two closer than the closest two of any
    user, and the worst such steps. Without a user column, and in a stream of periods, it is for all
    that (n, k, b) allows: in which periods a user took part depends on private times. Nothing here
    depends on the content of rows.

    Args:
        state: of the stream; what was committed counts.

    Raises:
        RuntimeError: the two accountants disagree.

    Guarantees:
        epsilon_spent ≤ epsilon.
    """
    plan = state.plan
    settings = plan.settings
    mechanism = plan.mechanism
    sigma = plan.noise_multiplier
    epsilon = certified_epsilon(sigma, settings.delta, settings.epsilon)
    times, keys = state.ledger.participations()
    gaps = np.diff(times)[np.diff(keys) == 0]
    separation = int(gaps.min()) if gaps.size else None
    counts = np.bincount(keys)
    lineage = state.ledger.lineage()
    losses = UserLosses([], np.array([gaussian_mu(sigma)]))
    users = 0
    participation: dict[str, int | None] = {
        "users_participated": None,
        "actual_max_participations": None,
        "actual_min_separation": None,
    }
    if settings.user_column is not None and settings.calendar is not None:
        losses = UserLosses([], np.zeros(0), others=gaussian_mu(sigma))
    elif settings.user_column is not None:
        losses = _losses_of_users(state, counts, separation)
        users = len(counts)
        participation = {
            "users_participated": len(counts),
            "actual_max_participations": int(counts.max(initial=0)),
            "actual_min_separation": separation,
        }
    statement = PrivacyStatement(
        {
            "unit": "user",
            "user_column": settings.user_column,
            "adjacency": mechanism.users.adjacency,
            "mechanism": plan.strategies[0],
            "params": plan.params[0],
            "method": settings.method,
            "workload": settings.workloads[0],
            "second_moment": _second_moment(plan),
            "columns": list(Renderer(plan).names),
            "dimension": plan.layout.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": state.position.step,
            "release_every": plan.every,
            "periods": _periods(plan),
            "rows_of_user_in_a_release": plan.rows_of_user,
            "sampling": "none: no amplification claimed",
            "amplification": None,
            "users": None,
            "users_per_round": 1,
            "clip_norm": mechanism.users.norm_bound,
            "noise_multiplier": sigma,
            "noise_std": mechanism.first_std,
            "sensitivity": plan.sensitivity.value / mechanism.users.norm_bound,
            "sensitivity_kind": plan.sensitivity.kind,
            "sensitivity_case": plan.sensitivity.case,
            "unit_bits": list(mechanism.rounding.bits),
            "released_files": state.ledger.about.get(DIGESTS),
            "rounding": plan.rows_of_user * mechanism.rounding.movement,
            "failure": mechanism.rounding.failure,
            "delta": settings.delta,
            "epsilon": epsilon,
            "epsilon_known_cohorts": epsilon,
            "epsilon_so_far": None,
            "mu": gaussian_mu(sigma),
            **losses.figures(settings.delta, users, epsilon),
            **participation,
            "noise_key": state.key.fingerprint,
            "noise_key_public": state.key.public,
            "public_inputs": _public_inputs(plan),
            "not_private": list(OPERATORS),
            "assumptions": _assumptions(plan),
            "not_covered": _not_covered(plan),
            "secret": list(SECRETS),
            "this_copy": lineage.unseen(),
            "software": plan.software,
        }
    )
    return PrivacyCost(str(state.directory), statement, losses, lineage)


def checked_costs(state: StreamState) -> PrivacyCost:
    """The result of `costs_of` for a stream, the files of which agree with its ledger.

    Raises:
        LedgerError: the state or a release in the ledger, ``statement.json``, ``statement.txt`` or
            a file in ``released`` is not as it was written.
    """
    check_contents(state.ledger)
    costs = costs_of(state)
    check_statement(state.directory, costs.statement)
    if state.plan.settings.keep_releases:
        rows = state.plan.mechanism.rows(state.plan.second_moment)
        check_released(state.directory / FOLDER, sum(rows.sizes), state.ledger)
    return costs


def _losses_of_users(
    state: StreamState, counts: NDArray[np.int64], separation: int | None
) -> UserLosses:
    """The μ of each user by its number of steps; users with equal numbers share one."""
    sizes, of = np.unique(counts, return_inverse=True)
    losses = []
    for size in sizes.tolist():
        sigma = state.plan.multiplier_under(size, separation)
        losses.append(gaussian_mu(sigma))
    return UserLosses(state.ledger.histories.names[: len(counts)], np.array(losses)[of])


def _second_moment(plan: StreamPlan) -> dict[str, Any]:
    """The second moment and its noise; mechanism and parameters if it has one of its own."""
    description: dict[str, Any] = {
        "moment": plan.settings.second_moment,
        "mechanism": None,
        "params": None,
        "workload": plan.settings.workloads[-1],
        "weight": plan.mechanism.weight,
        "noise_std": plan.mechanism.second_std,
    }
    if plan.mechanism.second is not None:
        description["mechanism"] = plan.strategies[-1]
        description["params"] = plan.params[-1]
    return description


def _periods(plan: StreamPlan) -> dict[str, str] | None:
    """The calendar of a stream of periods."""
    settings = plan.settings
    if settings.calendar is None:
        return None
    return {
        "every": str(settings.release_every),
        "start": settings.calendar.start.isoformat(),
        "end": settings.calendar.end.isoformat(),
    }


def _public_inputs(plan: StreamPlan) -> list[dict[str, str]]:
    """Return the facts that were declared, and ζ without the coordinate that counts rows."""
    settings = plan.settings
    inputs = []
    if settings.schema is not None:
        source = f"declared: schema {settings.schema.digest}"
        inputs.append({"name": "normalization", "value": _normalization(plan), "source": source})
    if settings.schema is not None or settings.count_weight:
        value = f"{settings.clip_norm:.6g} for the columns of a row"
        if settings.schema is not None:
            value += ", after normalization"
        inputs.append({"name": "clip norm", "value": value, "source": "declared"})
    for name, column in settings.labels.items():
        value = f"column {column!r}, {_PUBLISHED}"
        inputs.append({"name": name, "value": value, "source": "declared"})
    return inputs


def _normalization(plan: StreamPlan) -> str:
    """The bounds and units of the columns of a schema."""
    encoding = plan.settings.encoding
    assert encoding is not None
    columns = []
    for name, column in zip(encoding.names, encoding.columns, strict=True):
        text = f"{name} is 1 or 0 for each of its {len(column.endings)} categories"
        if isinstance(column, Number):
            center, scale, lower, upper = column.units
            text = f"{name} is clipped into {lower:g}..{upper:g}, then (x − {center:g})/{scale:g}"
        columns.append(text)
    return "; ".join(columns)


def _not_covered(plan: StreamPlan) -> list[str]:
    if plan.settings.calendar is not None:
        return [_IDS_IN_STATE, *NOT_COVERED[1:]]
    if not plan.settings.labels:
        return list(NOT_COVERED)
    labels = " and ".join(plan.settings.labels)
    return [_LABELS.format(labels=labels), *NOT_COVERED]


def _assumptions(plan: StreamPlan) -> list[str]:
    assumptions = [_ROWS_ARE_USERS]
    if plan.settings.user_column is not None:
        assumptions = [_IDS, _READABLE_IDS, SPENT_ASSUMPTION]
    if plan.settings.calendar is not None:
        assumptions = [_ROWS_ARE_USERS]
        if plan.settings.user_column is not None:
            assumptions = [_IDS]
        assumptions.append(_PUBLIC_CALENDAR)
    assumptions.append(_PUBLIC_LAYOUT)
    if plan.settings.labels:
        assumptions.append(_PUBLIC_LABELS.format(labels=" and ".join(plan.settings.labels)))
    if plan.settings.rounds is None:
        assumptions.append(_PUBLIC_ROWS)
    return assumptions
