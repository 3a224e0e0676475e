"""The privacy statement of a stream."""

from __future__ import annotations

from typing import Any, Final

from fedmf.accounting import UNITS, certified_epsilon, gaussian_mu, gaussian_rho
from fedmf.noise import NoiseKey
from fedmf.records import Histories
from fedmf.statements import OPERATING_SYSTEM_KEY, PUBLIC_KEY
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Position
from fedmf.version import SOFTWARE

NOT_COVERED: Final = (
    "who took part: the number and order of the rows, who the users are and in which steps they took part "
    "are not hidden by the noise; publishing user ids or the state directory is outside of the promise",
    "choices made after looking at the data, such as norm bound, columns, scaling; and further runs on the "
    "same users: each releases more about them than this epsilon counts",
    "the moment at which the stream was stopped, if what rows hold decided it; an input that breaks off; the "
    "counts for the operator (operator.json)",
    "timing: what is given away by the times at which releases come",
    "whoever has the noise key, such as the operator or a thief: with it the noise can be subtracted, and "
    "nothing protects any more; and two copies that both went on, of the state directory or of the running "
    "process: what they released together",
    "rounding inside the computer: epsilon is proved for exact numbers, and noise is added in finite "
    "precision (floating point)",
)
SECRETS: Final = (
    "the noise key (noise.key) and every backup of it, for ever, also after the stream: whoever has it can "
    "subtract the noise",
    "the rest of the state directory (state.sqlite, releases.bin, noise.bin, pushes.bin, operator.json): it "
    "holds past noise, who took part in which step, and exact counts",
    "the input, and its rows wherever they were logged or kept: nothing protects those",
)
_EACH_ANOTHER: Final = (
    "every row belongs to another person: no user column was named, and a person with several rows is "
    "protected less, each row by itself alone"
)
_UNCHECKED: Final = (
    "no user gives more than {k} rows, nor two less than {b} steps apart: the operator says so and nothing "
    "checks it, as no user column was named"
)
_IDS: Final = UNITS["user"].distinct
_READABLE_IDS: Final = (
    "the user of every row can be read: a row whose user cannot be read counts for nobody, and as zeros in "
    "its step"
)
_PUBLIC_LAYOUT: Final = (
    "names and number of the columns are public: the head of the input tells them, or the program that "
    "pushes rows"
)
_STOPPING: Final = (
    "where the stream stopped: it was run so that it stops at a row that cannot be read (--stop-at-bad-row), "
    "so that it stopped, or did not, tells something about rows without noise, which epsilon does not count"
)
_PUBLIC_LABELS: Final = (
    "{labels} of every row, and whether it can be read, is public, as was declared: it does not depend on "
    "what is to be protected"
)
_LABELS: Final = (
    "what {labels} of a row tells: it was declared public and stands beside the row's release without noise. "
    "A row that cannot be split into columns has none, which tells that"
)
_PUBLIC_ROWS: Final = (
    "the horizon (how many steps there are) was counted from the input: the number of its rows is public"
)


def stream_statement(plan: StreamPlan, position: Position, users: Histories, key: NoiseKey) -> dict[str, Any]:
    """One record, JSON-able, of what the stream guarantees; nothing in it depends on a row's values.

    Args:
        plan: of the stream.
        position: how far it is.
        users: their histories.
        key: of the noise.

    Raises:
        RuntimeError: the two accountants disagree.

    Guarantees:
        epsilon_realised ≤ epsilon_planned. It is what the recorded participation allows at most; mu_realised
        and rho_realised say the same as Gaussian and as zero-concentrated differential privacy.
    """
    made, settings = plan.mechanism, plan.settings
    k, b = plan.participation.max_participations, plan.participation.min_separation
    sigma, spent = plan.noise_multiplier, _realised_multiplier(plan, users)
    planned = certified_epsilon(sigma, settings.delta, settings.epsilon)
    return {
        "unit": "user",
        "user_column": settings.user_column,
        "user_namespace": settings.user_namespace,
        "adjacency": made.users.adjacency,
        "method": made.name,
        "mechanism": plan.strategies[0],
        "params": plan.params[0],
        "second_mechanism": None if made.second is None else plan.strategies[-1],
        "second_params": None if made.second is None else plan.params[-1],
        "workload": plan.workload_names[0],
        "second_workload": plan.workload_names[1],
        "second_moment": settings.second,
        "dimension": plan.layout.dimension,
        "public_inputs": [
            {"name": name, "value": f"column {column!r}, beside each release as given", "source": "declared"}
            for name, column in settings.labels.items()
        ],
        "stops_at_bad_rows": position.may_stop,
        "rounds": plan.rounds,
        "rounds_source": "rows of the input, taken as public" if settings.rounds is None else "declared",
        "steps": position.step,
        "releases": position.records,
        "every": settings.every,
        "max_participations": k,
        "min_separation": b,
        "realised_max_participations": users.max_participations if len(users) else None,
        "realised_min_separation": users.min_separation,
        "sampling": "none: no amplification claimed",
        "users": len(users) if settings.user_column is not None else None,
        "clip_norm": made.users.norm_bound,
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity": plan.sensitivity.value,
        "sensitivity_kind": plan.sensitivity.kind,
        "sensitivity_case": plan.sensitivity.case,
        "weight": made.weight,
        "first_std": made.first_std,
        "second_std": made.second_std,
        "delta": settings.delta,
        "epsilon_requested": settings.epsilon,
        "epsilon_planned": planned,
        "epsilon_realised": 0.0 if spent is None else min(planned, certified_epsilon(spent, settings.delta)),
        "mu_planned": gaussian_mu(sigma),
        "mu_realised": 0.0 if spent is None else gaussian_mu(spent),
        "rho_planned": gaussian_rho(sigma),
        "rho_realised": 0.0 if spent is None else gaussian_rho(spent),
        "noise_key": f"{key.fingerprint} ({PUBLIC_KEY if key.public else OPERATING_SYSTEM_KEY})",
        "noise_key_public": key.public,
        "assumptions": _assumptions(plan),
        "not_covered": [
            *([_STOPPING] if position.may_stop else []),
            *([_LABELS.format(labels=" and ".join(settings.labels))] if settings.labels else []),
            *NOT_COVERED,
        ],
        "secret": list(SECRETS),
        "software": plan.software,
        "stated_by": SOFTWARE,
    }


def _realised_multiplier(plan: StreamPlan, users: Histories) -> float | None:
    """σ towards users who took part as recorded, at least the planned one; None if nobody did."""
    if plan.settings.user_column is None:
        return plan.noise_multiplier
    if not len(users):
        return None
    return plan.multiplier_under(users.max_participations, users.min_separation)


def _assumptions(plan: StreamPlan) -> list[str]:
    k, b = plan.participation.max_participations, plan.participation.min_separation
    if plan.settings.user_column is not None:
        assumed = [
            _IDS,
            _READABLE_IDS,
            "the data did not decide who took part when: epsilon_realised, which is computed from the record "
            "of that, rests on it",
        ]
    else:
        assumed = [_EACH_ANOTHER if k == 1 else _UNCHECKED.format(k=k, b=b)]
    assumed.append(_PUBLIC_LAYOUT)
    if plan.settings.labels:
        assumed.append(_PUBLIC_LABELS.format(labels=" and ".join(plan.settings.labels)))
    return assumed if plan.settings.rounds is not None else [*assumed, _PUBLIC_ROWS]
