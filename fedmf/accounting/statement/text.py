"""The privacy statement as text a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting.rounding import at_least, at_most

__all__ = ["LISTS", "down", "facts", "headline", "render", "up"]

#: The lists of a statement, by heading.
LISTS: Final = (
    ("Assumes", "assumptions"),
    ("Does not cover", "not_covered"),
    ("Must stay secret", "secret"),
)
_KNOWING: Final = ", to an observer who knows its rounds"


def render(statement: Mapping[str, Any]) -> str:
    """Lay a statement's dict out as plain lines, most important first."""
    lines = [headline(statement), ""]
    width = max(len(name) for name, _ in facts(statement))
    lines += [f"  {name:<{width}}  {value}" for name, value in facts(statement)]
    for title, name in LISTS:
        lines += ["", f"{title}:", *(f"  - {text}" for text in statement[name])]
    return "\n".join(lines) + "\n"


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    if statement["epsilon_planned"] is None:
        return "No privacy: this run added no noise."
    known = statement["epsilon_planned_known_cohorts"]
    text = (
        f"Every user has ({up(statement['epsilon_planned'])}, {up(statement['delta'])})-differential privacy "
        f"under {statement['adjacency']} adjacency."
    )
    if statement["amplification"] is not None:
        text = f"{text[:-1]} while the cohorts stay secret, and epsilon {up(known)} "
        text += "against whoever knows them."
    if statement["noise_key_public"]:
        return "Simulation only, no privacy (public noise seed). With a secret key: " + text
    return text


def facts(statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything a statement says in numbers, most important first."""
    s = statement
    params = ", ".join(f"{name}={value:g}" for name, value in s["params"].items())
    quantiles = s["epsilon_realised_quantiles"]
    empty = f", {s['rounds_empty']} of them empty" if s["rounds_empty"] else ""
    rows = [
        ("epsilon planned", f"{up(s['epsilon_planned'])} for all {s['rounds']} rounds"),
        (
            "epsilon realised",
            f"{up(s['epsilon_realised'])} (worst user{_KNOWING if s['amplification'] else ''})",
        ),
        (
            "over users",
            f"half at most {up(quantiles['0.5'])}, 90 % at most {up(quantiles['0.9'])}",
        ),
        ("delta", up(s["delta"])),
        ("as Gaussian DP", f"mu = {up(s['mu_planned'])} planned, {up(s['mu_realised'])} realised"),
        (
            "as zCDP",
            f"rho = {up(s['rho_planned'])} planned, {up(s['rho_realised'])} realised",
        ),
        ("unit", f"{s['unit']}, {s['adjacency']} adjacency"),
        ("mechanism", s["mechanism"] + (f" ({params})" if params else "")),
        ("rounds", f"{s['rounds_released']} of {s['rounds']} released{empty}"),
        (
            "participations",
            f"at most {s['max_participations']} planned, {s['realised_max_participations']} realised",
        ),
        (
            "separation",
            f"at least {s['min_separation']} planned, "
            f"{'none' if s['realised_min_separation'] is None else s['realised_min_separation']} realised",
        ),
        ("sampling", s["sampling"]),
        ("users", f"{s['users_participated']} of {s['users']} took part, {s['cohort_size']} planned a round"),
        ("clip norm", up(s["clip_norm"])),
        ("noise multiplier", f"{down(s['noise_multiplier'])} per unit sensitivity"),
        (
            "sensitivity",
            f"{up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})",
        ),
        ("noise", f"standard deviation {down(s['noise_std'])} on the sum, before correlation"),
        ("noise key", s["noise_key"]),
        ("trust", s["trust"]),
        ("software", s["software"]),
    ]
    if s["second_moment"] is not None:
        rows.insert(-2, ("second moment", _second_moment(s["second_moment"])))
    if s["epsilon_planned_so_far"] is not None:
        rows.insert(1, ("epsilon so far", f"{up(s['epsilon_planned_so_far'])} allowed by the plan"))
    if s["amplification"] is not None:
        rows[1:1] = [("  cohorts known", f"{up(s['epsilon_planned_known_cohorts'])} for all rounds")]
        rows.insert(-3, ("accountant", _accountant(s["amplification"])))
    return rows


def _second_moment(second: Mapping[str, Any]) -> str:
    """The stream that the same ε covers."""
    return (
        f"{second['moment']}, {second['form']}, {second['features']} numbers under the same epsilon; "
        f"{second['mechanism']}, lambda = {up(second['weight'])}, noise of standard deviation "
        f"{down(second['noise_std'])}"
    )


def _accountant(amplification: Mapping[str, Any]) -> str:
    """How sure the amplified ε is."""
    text = f"{amplification['accountant']}, {amplification['method']}"
    if amplification["failure"]:
        text += f", wrong with probability {up(amplification['failure'])} at most, which delta includes"
        if amplification["method"] == "normal interval":
            text += " (by the normal approximation)"
    return text


def up(value: float | None) -> str:
    """Six digits, rounded up, or what None stands for."""
    return "infinite" if value is None else at_least(value)


def down(value: float) -> str:
    """Six digits, rounded down."""
    return at_most(value)
