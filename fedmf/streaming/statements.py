"""The privacy statement of a stream."""

from __future__ import annotations

import math
from typing import Any, Final

from fedmf.accounting import OPERATING_SYSTEM_KEY, PUBLIC_KEY, certified_epsilon
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.state import Position
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.streaming.users import UserHistories

__all__ = ["render_statement", "stream_statement"]

NOT_COVERED: Final = (
    "the number and order of the rows, who the users are and in which steps they took part are not "
    "protected; publishing user ids or the state directory is outside the guarantee",
    "choices made after looking at the data: norm bound, columns, scaling, and each further run on the same "
    "users adds to what they lose",
    "when the stream was stopped, if that depends on values; messages and counts for the operator",
    "compromise of the noise key, or the same state directory copied and continued twice",
    "floating point: the analysis is for real numbers, the noise is added in finite precision",
)
_EACH_ANOTHER: Final = "every row belongs to another user, as no user column was named"
_UNCHECKED: Final = (
    "no user gives more than {k} rows, nor two less than {b} steps apart: asserted by the operator, not "
    "checked, as no user column was named"
)
_IDS: Final = "every user id belongs to one person who takes part under no other id"
_PUBLIC_ROWS: Final = "the horizon was counted from the input: the number of its rows is public"


def stream_statement(
    plan: StreamPlan, position: Position, users: UserHistories, key: NoiseKey
) -> dict[str, Any]:
    """One record, JSON-able, of what the stream guarantees; nothing in it depends on a row's values.

    Args:
        plan: of the stream.
        position: how far it is.
        users: their histories.
        key: of the noise.

    Raises:
        RuntimeError: the two accountants disagree.

    Guarantees:
        epsilon_realised ≤ epsilon_planned. It is what the recorded participation allows at most.
    """
    made, settings = plan.mechanism, plan.settings
    n, k, b = _contract(made.participation)
    planned = certified_epsilon(made.noise_multiplier, settings.delta)
    names = settings.mechanisms
    return {
        "unit": "user",
        "adjacency": made.users.adjacency,
        "method": made.name,
        "mechanism": names[0],
        "params": plan.params[0],
        "second_mechanism": None if made.second is None else names[-1],
        "second_params": None if made.second is None else plan.params[-1],
        "workload": plan.workloads[0].name,
        "second_workload": plan.workloads[1].name,
        "second_moment": settings.second,
        "dimension": plan.layout.dimension,
        "rounds": n,
        "rounds_source": "declared" if settings.rounds is not None else "rows of the input, taken as public",
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
        "noise_multiplier": made.noise_multiplier,
        "sensitivity": made.sensitivity.value,
        "sensitivity_kind": made.sensitivity.kind,
        "sensitivity_case": made.sensitivity.case,
        "weight": made.weight,
        "first_std": made.first_std,
        "second_std": made.second_std,
        "delta": settings.delta,
        "epsilon_requested": settings.epsilon,
        "epsilon_planned": planned,
        "epsilon_realised": _realised(plan, users, planned),
        "noise_key": f"{key.fingerprint} ({PUBLIC_KEY if key.public else OPERATING_SYSTEM_KEY})",
        "assumptions": _assumptions(plan),
        "not_covered": list(NOT_COVERED),
    }


def render_statement(statement: dict[str, Any]) -> str:
    """The statement as text a person reads."""
    s = statement
    headline = (
        f"Every user has ({s['epsilon_planned']:.6g}, {s['delta']:g})-differential privacy under "
        f"{s['adjacency']} adjacency."
    )
    if PUBLIC_KEY in s["noise_key"]:
        headline = "Simulation only, no privacy (public noise seed). With a secret key: " + headline
    first = _named(s["mechanism"], s["params"])
    other = first if s["second_mechanism"] is None else _named(s["second_mechanism"], s["second_params"])
    second = "" if other == first else f"; second {other}"
    works = (
        s["workload"] if s["workload"] == s["second_workload"] else f"{s['workload']}, {s['second_workload']}"
    )
    realised = s["realised_max_participations"]
    apart = s["realised_min_separation"]
    rows = [
        ("epsilon planned", f"{s['epsilon_planned']:.6g} for all {s['rounds']} steps"),
        ("epsilon realised", f"{s['epsilon_realised']:.6g} at most, by the participation recorded"),
        ("delta", f"{s['delta']:g}"),
        ("method", f"{s['method']}, {first}{second}"),
        ("released", f"{works}, second moment {s['second_moment']}, d = {s['dimension']}"),
        ("steps", f"{s['steps']} of {s['rounds']} ({s['rounds_source']}), {s['releases']} released"),
        ("participations", _pair(f"at most {s['max_participations']}", realised)),
        ("separation", _pair(f"at least {s['min_separation']}", apart)),
        ("norm bound", f"{s['clip_norm']:.6g}"),
        ("noise multiplier", f"{s['noise_multiplier']:.6g} per unit sensitivity"),
        (
            "sensitivity",
            f"{s['sensitivity']:.6g} ({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})",
        ),
        ("noise", _levels(s)),
        ("noise key", s["noise_key"]),
    ]
    lines = [headline, "", *(f"  {name:<16}  {value}" for name, value in rows)]
    for title, name in (("Assumes", "assumptions"), ("Does not cover", "not_covered")):
        lines += ["", f"{title}:", *(f"  - {text}" for text in s[name])]
    return "\n".join(lines) + "\n"


def _realised(plan: StreamPlan, users: UserHistories, planned: float) -> float:
    if plan.settings.user_column is None:
        return planned
    if not len(users):
        return 0.0
    k, b = users.max_participations, users.min_separation or plan.rounds
    sigma = plan.mechanism.multiplier_under(Participation(plan.rounds, k, b))
    return min(planned, certified_epsilon(sigma, plan.settings.delta)) if math.isfinite(sigma) else planned


def _assumptions(plan: StreamPlan) -> list[str]:
    _, k, b = _contract(plan.mechanism.participation)
    if plan.settings.user_column is not None:
        found = [_IDS, "epsilon_realised holds if who takes part when does not depend on the data"]
    else:
        found = [_EACH_ANOTHER if k == 1 else _UNCHECKED.format(k=k, b=b)]
    return found if plan.settings.rounds is not None else [*found, _PUBLIC_ROWS]


def _contract(participation: Participation) -> tuple[int, int, int]:
    return participation.rounds, participation.max_participations, participation.min_separation


def _named(name: str, params: dict[str, float]) -> str:
    given = ", ".join(f"{symbol}={value:g}" for symbol, value in params.items())
    return f"{name} ({given})" if given else name


def _pair(planned: str, realised: int | None) -> str:
    return f"{planned} planned, {'none' if realised is None else realised} realised"


def _levels(s: dict[str, Any]) -> str:
    text = f"standard deviation {s['first_std']:.6g} on the first moment"
    second = "" if s["second_std"] is None else f", {s['second_std']:.6g} on the second"
    return text + second + ", before correlation"
