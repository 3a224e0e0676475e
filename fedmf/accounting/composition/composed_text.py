"""A statement of several runs and streams together as plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedmf.accounting.rounding import at_least
from fedmf.accounting.statement import joint_verdict_lines
from fedmf.accounting.unit import UNITS


def render_composed(statement: Mapping[str, Any]) -> str:
    """Lay out what `ComposedStatement.to_dict` gave, most important first."""
    s, unit = statement, UNITS[statement["unit"]]
    promise = f"({_up(s['epsilon_realised'])}, {_up(s['delta'])})-differential privacy"
    lines = joint_verdict_lines(s["composed"])
    lines += ["Simulation only, no privacy (public noise seed). With secret keys:"] * s["noise_key_public"]
    lines += [
        f"{len(s['composed'])} runs and streams together: the worst {unit.name} has {promise} under "
        f"{s['adjacency']} adjacency (not private).",
        "",
        *(f"  {name:<16}  {value}" for name, value in _facts(s)),
        *(_part(part, unit.name) for part in s["composed"]),
        "",
        "Assumes:",
        *(f"  - {text}" for text in s["assumptions"]),
    ]
    return "\n".join(lines) + "\n"


def _facts(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    one, hidden = UNITS[s["unit"]].name, s["epsilon_secret_cohorts_quantiles"]
    realised = _spread(one, s["epsilon_realised"], s["epsilon_realised_median"])
    in_sight = _spread(one, s["epsilon_odometer"], s["epsilon_odometer_median"])
    joined = ", ".join(f"{count:,} in {n}" for n, count in s["users_by_directories"].items())
    facts = [
        ("epsilon realised", f"{realised}, of {s['users_participated']:,} who took part in any"),
        ("epsilon planned", f"{_up(s['epsilon_planned'])} for a {one} who does all that contracts allow"),
        ("as odometer", f"{in_sight}, if they were chosen in sight of each other"),
        ("added up", f"{_up(s['epsilon_sum'])} at delta {_up(s['delta_sum'])}: what summing would say"),
        ("mu realised", _up(s["mu_realised"])),
        ("joined by", f"{one} id of {s['user_namespace']!r}: {joined}"),
    ]
    if hidden is not None:
        told = f"{_spread(one, hidden['1'], hidden['0.5'])}, towards those who do not know them"
        facts.insert(2, ("secret cohorts", told))
    return facts


def _spread(one: str, worst: float | None, median: float | None) -> str:
    return f"{_up(worst)} (worst {one}), half at most {_up(median)}"


def _part(part: Mapping[str, Any], one: str) -> str:
    return (
        f"  {part['directory']}: epsilon {_up(part['epsilon_realised'])} (worst {one}) at delta "
        f"{_up(part['delta'])}, {part['users_participated']:,} took part, noise key {part['noise_key']}"
        f"{', amplified' if part['amplified'] else ''}"
    )


def _up(value: float | None) -> str:
    return at_least(math.inf if value is None else value)
