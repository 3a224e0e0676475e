"""The privacy statement of a run in words: the operator's, and the one that may be public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedmf.accounting import UNITS, at_least, at_most
from fedmf.parts import stated
from fedmf.statements.document import in_full, in_short, mechanism, promise, sensitivity, up

_MARK: Final = "(not private)"


def run_text(statement: Mapping[str, Any]) -> str:
    """What `PrivacyStatement.to_dict` or `PrivacyStatement.public` gives, also after JSON, in words.

    Guarantees:
        It tells nothing about a single user but the worst user's ε, and depends on participation only through
        lines that are marked as not private; of a statement that may be public not at all.
    """
    return in_full(statement, headline(statement), facts(statement))


def summarise(
    statement: Mapping[str, Any], rest: str, model: Sequence[tuple[str, str]] = (), place: str = ""
) -> str:
    """The operator's statement of a run, `PrivacyStatement.to_dict`, in at most twelve lines.

    Args:
        statement: of the run.
        rest: where all of it is.
        model: (name, value) of what is known of the model, three rows at most.
        place: where the run's files are.
    """
    s, unit = statement, UNITS[statement["unit"]]
    private = s["epsilon_planned"] is not None
    size = f"{s['users']:,}, {s['cohort_size']:,} a round, each in {s['max_participations']} rounds at most"
    knowing = " to an observer who knows its rounds" if s["amplification"] else ""
    rows = [
        ("epsilon", _epsilon(s) if private else ""),
        ("unit", f"{unit.name}: {size}"),
        ("mechanism", _mechanism(s) if private else ""),
        ("also counted", _also(s) if private else ""),
        *model,
        (f"worst {unit.name}", f"epsilon {up(s['epsilon_realised'])}{knowing} {_MARK}" if private else ""),
        (f"median {unit.name}", f"epsilon {up(_median(s))}{knowing} {_MARK}" if private else ""),
    ]
    return in_short(s, [headline(s)], rows, rest, place)


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    s = statement
    if s["epsilon_planned"] is None:
        return "No privacy: this run added no noise."
    text = f"{UNITS[s['unit']].each} has {promise(s['epsilon_planned'], s['delta'], s['adjacency'])}"
    text += ", against anyone who sees all that was released"
    if s["amplification"] is not None:
        known = up(s["epsilon_planned_known_cohorts"])
        text += f" but not who took part in which round; epsilon {known} against whoever sees that too"
    if s["noise_key_public"]:
        return f"Simulation only, no privacy (public noise seed). With a secret key: {text}."
    return f"{text}."


def facts(statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything a statement says in numbers, most important first.

    What the record of participation tells comes last, each marked as not private; a statement that may be
    public has none of it.
    """
    s = statement
    return [*_planned(s), *(_realised(s) if "epsilon_realised" in s else [])]


def _planned(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    amplified, so_far = s["amplification"], s["epsilon_planned_so_far"]
    optional: list[tuple[str, str, Any]] = [
        ("  cohorts known", f"{up(s['epsilon_planned_known_cohorts'])} for all rounds", amplified),
        ("epsilon so far", f"{up(so_far)} allowed by the plan", None if so_far is None else True),
    ]
    rows = [
        ("epsilon planned", f"{up(s['epsilon_planned'])} for all {s['rounds']} rounds"),
        *((name, value) for name, value, shown in optional if shown is not None),
        ("delta", up(s["delta"])),
        ("as Gaussian DP", f"mu = {up(s['mu_planned'])} planned"),
        ("as zCDP", f"rho = {up(s['rho_planned'])} planned"),
        ("unit", f"{s['unit']}, {s['adjacency']} adjacency"),
        *([("user ids of", s["user_namespace"])] if s["user_namespace"] else []),
        ("mechanism", mechanism(s["mechanism"], s["params"])),
        ("rounds", f"{s['rounds_released']} of {s['rounds']} released"),
        ("participations", f"at most {s['max_participations']} planned"),
        ("separation", f"at least {s['min_separation']} planned"),
        ("sampling", s["sampling"]),
        (UNITS[s["unit"]].plural, f"{s['users']}, {s['cohort_size']} planned a round"),
        ("clip norm", at_least(s["clip_norm"])),
        ("noise multiplier", f"{_level(s['noise_multiplier'])} per unit sensitivity"),
        ("sensitivity", sensitivity(s)),
        ("noise", f"standard deviation {_level(s['noise_std'])} on the sum, before correlation"),
        *([] if amplified is None else [("accountant", _accountant(amplified))]),
        *((name, said(s[field], s["unit"])) for name, (field, said) in _STREAMS.items() if s[field]),
        *(line for part, said in stated(s) for line in part.lines(said)),
        ("noise key", s["noise_key"]),
        ("trust", s["trust"]),
        (
            "software",
            s["software"]
            if s["software"] == s["stated_by"]
            else f"run by {s['software']}, stated by {s['stated_by']}",
        ),
    ]
    remarks = [part.remarks(said) for part, said in stated(s)]
    return [(name, "".join([value, *(said.get(name, "") for said in remarks)])) for name, value in rows]


def _realised(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    quantiles = s["epsilon_realised_quantiles"]
    many = UNITS[s["unit"]].plural
    knowing = ", to an observer who knows its rounds" if s["amplification"] else ""
    least = "none repeated" if s["realised_min_separation"] is None else s["realised_min_separation"]
    rows = [
        ("epsilon realised", f"{up(s['epsilon_realised'])} (worst {s['unit']}{knowing})"),
        (f"over {many}", f"half at most {up(quantiles['0.5'])}, 90 % at most {up(quantiles['0.9'])}"),
        ("mu, rho realised", f"{up(s['mu_realised'])}, {up(s['rho_realised'])}"),
        ("took part", f"{s['users_participated']} of {s['users']} {many}"),
        (
            "contract kept",
            f"{s['realised_max_participations']} participations at most, separation {least}",
        ),
        ("empty rounds", str(s["rounds_empty"])),
    ]
    return [(name, f"{value} {_MARK}") for name, value in rows]


def _second_moment(second: Mapping[str, Any], unit: str) -> str:
    """The stream that the same ε covers."""
    del unit
    return (
        f"{second['moment']}, {second['form']}, {second['features']} numbers under the same epsilon; "
        f"{second['mechanism']}, lambda = {up(second['weight'])}, noise of standard deviation "
        f"{_level(second['noise_std'])}"
    )


#: Streams beside the updates, where a run has them: the field of a statement, and what is said of it.
_STREAMS: Final = {
    "second moment": ("second_moment", _second_moment),
}


def _accountant(amplification: Mapping[str, Any]) -> str:
    """How sure the amplified ε is."""
    text = f"{amplification['accountant']}, {amplification['method']}"
    if amplification["failure"]:
        text += f", wrong with probability {up(amplification['failure'])} at most, which delta includes"
    return text


def _level(value: float) -> str:
    """Noise that a claim says was added: rounded down."""
    return at_most(value)


def _median(s: Mapping[str, Any]) -> float | None:
    median: float | None = s["epsilon_realised_quantiles"]["0.5"]
    return median


def _epsilon(s: Mapping[str, Any]) -> str:
    planned, so_far = f"{up(s['epsilon_planned'])} for all {s['rounds']} rounds", s["epsilon_planned_so_far"]
    if so_far is not None:
        planned = f"{up(so_far)} after {s['rounds_released']} rounds, {planned}"
    return f"{planned}, delta {up(s['delta'])}"


def _mechanism(s: Mapping[str, Any]) -> str:
    params = "".join(f" {name}={value:.4g}" for name, value in s["params"].items())
    norm = up(s["clip_norm"]) + "".join(part.in_short(said).get("clip norm", "") for part, said in stated(s))
    return f"{s['mechanism']}{params}, noise multiplier {at_most(s['noise_multiplier'])}, clip norm {norm}"


def _also(s: Mapping[str, Any]) -> str:
    """What is released beside the model under the same ε."""
    parts = {"second_moment": "second moment"}
    own = [name for part, said in stated(s) for name, _ in part.lines(said)[:1]]
    return ", ".join([*(name for key, name in parts.items() if s[key] is not None), *own])
