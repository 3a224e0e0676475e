"""The privacy statement of a stream in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.accounting import at_least, at_most
from fedmf.statements import in_full, in_short, mechanism, promise, sensitivity


def stream_text(statement: Mapping[str, Any]) -> str:
    """What `stream_statement` gave, in words."""
    return in_full(statement, headline(statement), facts(statement))


def summarise_stream(statement: Mapping[str, Any], rest: str) -> str:
    """The guarantee, what was done for it and where the rest is, in a few lines.

    Args:
        statement: what `stream_statement` gave.
        rest: where all of it is.
    """
    s, named = statement, dict(facts(statement))
    most = s["max_participations"]
    rows = "row" if most == 1 else "rows"
    said = [
        ("released", f"{named['released']}, by {named['method']}"),
        (
            "steps",
            f"{named['steps']}; at most {most} {rows} of each user, of norm at most {named['norm bound']}",
        ),
        ("epsilon", f"{named['epsilon planned']}, {named['epsilon realised']}"),
    ]
    return in_short(s, [headline(s)], said, rest)


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    s = statement
    text = (
        f"Every {unit_of(s)} has {promise(s['epsilon_planned'], s['delta'], s['adjacency'])}, "
        "against anyone who sees all that was released."
    )
    if s["noise_key_public"]:
        return "Simulation only, no privacy (public noise seed). With a secret key: " + text
    return text


def each_row_a_user(statement: Mapping[str, Any]) -> bool:
    """Whether every row is another user's, as no column says whose it is."""
    return statement["user_column"] is None and statement["max_participations"] == 1


def unit_of(statement: Mapping[str, Any]) -> str:
    """Who has what a statement promises: a row, or a user and how users are told apart."""
    if each_row_a_user(statement):
        return "row"
    if statement["user_column"] is None:
        return f"user (of at most {statement['max_participations']} rows, which nobody checks)"
    return f"user (column `{statement['user_column']}`)"


def facts(statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything a statement says in numbers, most important first."""
    s = statement
    realised = s["realised_max_participations"]
    return [
        ("epsilon planned", f"{at_least(s['epsilon_planned'])} for all {s['rounds']} steps"),
        ("epsilon realised", f"{at_least(s['epsilon_realised'])} at most, by the participation recorded"),
        ("delta", at_least(s["delta"])),
        (
            "as Gaussian DP",
            f"mu = {at_least(s['mu_planned'])} planned, {at_least(s['mu_realised'])} realised",
        ),
        ("as zCDP", f"rho = {at_least(s['rho_planned'])} planned, {at_least(s['rho_realised'])} realised"),
        ("unit", f"{unit_of(s)}, {s['adjacency']} adjacency"),
        ("method", f"{s['method']}, {_strategies(s)}"),
        ("released", f"{_workloads(s)}, second moment {s['second_moment']}, d = {s['dimension']}"),
        ("steps", f"{s['steps']} of {s['rounds']} ({s['rounds_source']}), {s['releases']} released"),
        ("participations", _pair(f"at most {s['max_participations']}", realised)),
        ("separation", _pair(f"at least {s['min_separation']}", s["realised_min_separation"])),
        ("norm bound", f"{at_least(s['clip_norm'])}"),
        ("noise multiplier", f"{at_most(s['noise_multiplier'])} per unit sensitivity"),
        ("sensitivity", sensitivity(s)),
        ("noise", _levels(s)),
        ("noise key", s["noise_key"]),
        ("software", _software(s)),
    ]


def _strategies(s: Mapping[str, Any]) -> str:
    first = mechanism(s["mechanism"], s["params"])
    if s["second_mechanism"] is None:
        return first
    second = mechanism(s["second_mechanism"], s["second_params"])
    return first if second == first else f"{first}; second {second}"


def _workloads(s: Mapping[str, Any]) -> str:
    first, second = s["workload"], s["second_workload"]
    return first if first == second else f"{first}, {second}"


def _software(s: Mapping[str, Any]) -> str:
    begun, stated = s["software"], s["stated_by"]
    return begun if begun == stated else f"begun by {begun}, stated by {stated}"


def _pair(planned: str, realised: int | None) -> str:
    return f"{planned} planned, {'none' if realised is None else realised} realised"


def _levels(s: Mapping[str, Any]) -> str:
    text = f"standard deviation {at_most(s['first_std'])} on the first moment"
    second = "" if s["second_std"] is None else f", {at_most(s['second_std'])} on the second"
    return text + second + ", before correlation"
