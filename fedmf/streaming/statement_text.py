"""The privacy statement of a stream as text a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting import at_least, at_most
from fedmf.statements import (
    detection_percent,
    laid_out,
    odds_factor,
    render_document,
    verdict_lines,
    what_it_leaves,
    what_speaks_against,
)

#: The lists of a statement, by heading.
_LISTS: Final = (
    ("Assumes", "assumptions"),
    ("Does not cover", "not_covered"),
    ("Must stay secret", "secret"),
)
_OTHER_WORLD: Final = {
    "zero-out": "all of that user's rows had been zero",
    "replace-one": "that user had given any other rows within the norm bound",
}


def render_statement(statement: Mapping[str, Any]) -> str:
    """Lay out what `stream_statement` gave as plain lines, most important first."""
    rows = facts(statement)
    width = max(len(name) for name, _ in rows)
    lines = [*verdict_lines(statement), headline(statement), ""]
    lines += [*(f"  {name:<{width}}  {value}" for name, value in rows)]
    for title, texts in lists(statement):
        lines += ["", f"{title}:", *(f"  - {text}" for text in texts)]
    return "\n".join(lines) + "\n"


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
        ("statement", f"{what_it_leaves(s)}: {rest}"),
    ]
    return laid_out([*what_speaks_against(s), headline(s)], said)


def lists(statement: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """(heading, entries) of the lists of a statement."""
    inputs = [
        f"{entry['name']}: {entry['value']} ({entry['source']})" for entry in statement["public_inputs"]
    ]
    shown = [("Public inputs", inputs)] if inputs else []
    return [*shown, *((title, statement[name]) for title, name in _LISTS)]


def render_statement_page(statement: Mapping[str, Any]) -> str:
    """The same as a self-contained HTML page."""
    return render_document(
        not statement["noise_key_public"],
        headline(statement),
        plain_words(statement),
        facts(statement),
        lists(statement),
        f"Stream begun by {statement['software']}; statement computed from its state by "
        f"{statement['stated_by']}.",
        verdict_lines(statement),
        not statement.get("records", {"faults": {}})["faults"],
    )


def plain_words(statement: Mapping[str, Any]) -> list[str]:
    """What a statement means, as paragraphs for readers who know no mathematics."""
    s = statement
    odds, detected = odds_factor(s["epsilon_planned"]), detection_percent(s["mu_planned"])
    paragraphs = [
        f"Protected is each user, with all rows the user gave in {_any_step(s)}, not a "
        "single row. Two worlds are compared: the one that was, and one in which "
        f"{_OTHER_WORLD[s['adjacency']]}.",
        "Whatever an observer of all releases concludes, however much else is known about that user and all "
        "others, the probability of that conclusion differs between the two worlds at most by the factor "
        f"{odds}, plus {at_least(s['delta'])}. A test between the two worlds that raises a false alarm in "
        f"5 % of cases detects the user's rows in at most {detected} % of cases.",
        _whatever(s)
        + " The realised ones say what the recorded participation allows at most; they hold only "
        "if who takes part when does not depend on the data.",
    ]
    if s["noise_key_public"]:
        paragraphs.insert(
            0,
            "The noise of this stream follows from a public seed: anyone can compute and subtract it, so it "
            "protects nobody. What follows is what the same stream with a secret key would give.",
        )
    return paragraphs


def _whatever(s: Mapping[str, Any]) -> str:
    if s["stops_at_bad_rows"]:
        return (
            "The planned figures hold for rows that can be read: this stream was run so that it stops at one "
            "that cannot, which tells something about that row without noise."
        )
    return (
        "The planned figures hold whatever numbers the rows hold; a row that cannot be read takes its step "
        "as a zero vector."
    )


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    epsilon, delta = at_least(statement["epsilon_planned"]), at_least(statement["delta"])
    text = (
        f"Every user has ({epsilon}, {delta})-differential privacy under {statement['adjacency']} adjacency."
    )
    if statement["noise_key_public"]:
        return "Simulation only, no privacy (public noise seed). With a secret key: " + text
    return text


def facts(statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything a statement says in numbers, most important first."""
    s = statement
    realised = s["realised_max_participations"]
    return [
        ("epsilon planned", f"{at_least(s['epsilon_planned'])} for {_all_steps(s)}"),
        ("epsilon realised", f"{at_least(s['epsilon_realised'])} at most, by the participation recorded"),
        ("delta", at_least(s["delta"])),
        (
            "as Gaussian DP",
            f"mu = {at_least(s['mu_planned'])} planned, {at_least(s['mu_realised'])} realised",
        ),
        ("as zCDP", f"rho = {at_least(s['rho_planned'])} planned, {at_least(s['rho_realised'])} realised"),
        ("unit", f"{s['unit']}, {s['adjacency']} adjacency"),
        ("method", f"{s['method']}, {_strategies(s)}"),
        ("released", f"{_workloads(s)}, second moment {s['second_moment']}, d = {s['dimension']}"),
        ("steps", f"{_steps(s)} ({s['rounds_source']}), {s['releases']} released"),
        ("participations", _pair(f"at most {s['max_participations']}", realised)),
        ("separation", _pair(_apart(s), s["realised_min_separation"])),
        ("norm bound", f"{at_least(s['clip_norm'])}"),
        ("noise multiplier", f"{at_most(s['noise_multiplier'])} per unit sensitivity"),
        (
            "sensitivity",
            f"{at_least(s['sensitivity'])} "
            f"({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})",
        ),
        ("noise", _levels(s)),
        ("noise key", s["noise_key"]),
        ("software", _software(s)),
    ]


def _any_step(s: Mapping[str, Any]) -> str:
    if s["rounds"] is None:
        return "the whole life of the stream, however long"
    return f"any of the {s['rounds']} steps"


def _all_steps(s: Mapping[str, Any]) -> str:
    return "the whole life of the stream" if s["rounds"] is None else f"all {s['rounds']} steps"


def _steps(s: Mapping[str, Any]) -> str:
    return f"{s['steps']}" if s["rounds"] is None else f"{s['steps']} of {s['rounds']}"


def _apart(s: Mapping[str, Any]) -> str:
    return "no least" if s["min_separation"] is None else f"at least {s['min_separation']}"


def _strategies(s: Mapping[str, Any]) -> str:
    first = _named(s["mechanism"], s["params"])
    if s["second_mechanism"] is None:
        return first
    second = _named(s["second_mechanism"], s["second_params"])
    return first if second == first else f"{first}; second {second}"


def _workloads(s: Mapping[str, Any]) -> str:
    first, second = s["workload"], s["second_workload"]
    return first if first == second else f"{first}, {second}"


def _software(s: Mapping[str, Any]) -> str:
    begun, stated = s["software"], s["stated_by"]
    return begun if begun == stated else f"begun by {begun}, stated by {stated}"


def _named(name: str, params: Mapping[str, float]) -> str:
    given = ", ".join(f"{symbol}={value:g}" for symbol, value in params.items())
    return f"{name} ({given})" if given else name


def _pair(planned: str, realised: int | None) -> str:
    return f"{planned} planned, {'none' if realised is None else realised} realised"


def _levels(s: Mapping[str, Any]) -> str:
    text = f"standard deviation {at_most(s['first_std'])} on the first moment"
    second = "" if s["second_std"] is None else f", {at_most(s['second_std'])} on the second"
    return text + second + ", before correlation" + _noise_until(s)


def _noise_until(s: Mapping[str, Any]) -> str:
    return "" if s["rounds"] is not None else f"; of segment {s['segments']}, the last reached"
