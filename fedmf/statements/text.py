"""The privacy statement as text a person reads: the operator's, and the one that may be public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedmf.accounting import UNITS, at_least, at_most
from fedmf.parts import stated

_LISTS: Final = (
    ("Assumes", "assumptions"),
    ("Does not cover", "not_covered"),
    ("Must stay secret", "secret"),
)
_MARK: Final = "(not private)"


def render(statement: Mapping[str, Any]) -> str:
    """Lay a statement's dict out as plain lines, most important first."""
    lines, rows = [*verdict_lines(statement), headline(statement), ""], facts(statement)
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {value}" for name, value in rows]
    for title, texts in lists(statement):
        lines += ["", f"{title}:", *(f"  - {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def verdict_lines(statement: Mapping[str, Any], name: str = "Record") -> list[str]:
    """What a statement says of the records that it was computed from, a line each; none where it is not said.

    Args:
        statement: or a part of one, of one directory.
        name: of the directory, where there are several.

    >>> verdict_lines({"records": {"verdict": "tail missing", "faults": {"tail missing": "a file is gone"}}})
    ['Record: TAIL MISSING: a file is gone.']
    """
    if (records := statement.get("records")) is None:
        return []
    faults = [f"{name}: {fault.upper()}: {says}." for fault, says in records["faults"].items()]
    return faults or [f"{name}: {records['verdict']}."]


def joint_verdict_lines(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same of several directories: what speaks against any; nothing if nothing does."""
    faulty = [part for part in parts if part.get("records", {"faults": {}})["faults"]]
    return [line for part in faulty for line in verdict_lines(part, part["directory"])]


def lists(statement: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """(heading, entries) of the lists of a statement."""
    inputs = [
        f"{entry['name']}: {entry['value']} ({entry['source']})" for entry in statement["public_inputs"]
    ]
    shown = [("Public inputs", inputs)] if inputs else []
    return [*shown, *((title, statement[name]) for title, name in _LISTS)]


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    s = statement
    if s["epsilon_planned"] is None:
        return "No privacy: this run added no noise."
    text = f"{UNITS[s['unit']].each} has ({up(s['epsilon_planned'])}, {up(s['delta'])})-differential privacy "
    text += f"under {s['adjacency']} adjacency"
    if s["amplification"] is not None:
        known = up(s["epsilon_planned_known_cohorts"])
        text += f" while the cohorts stay secret, and epsilon {known} against whoever knows them"
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
        ("mechanism", s["mechanism"] + _parameters(s["params"])),
        ("rounds", f"{s['rounds_released']} of {s['rounds']} released"),
        *([("lost rounds", _lost(s["rounds_lost"]))] if s["rounds_lost"] else []),
        ("participations", f"at most {s['max_participations']} planned"),
        ("separation", f"at least {s['min_separation']} planned"),
        ("sampling", s["sampling"]),
        (UNITS[s["unit"]].plural, f"{s['users']}, {s['cohort_size']} planned a round"),
        ("clip norm", at_least(s["clip_norm"])),
        ("noise multiplier", f"{_level(s['noise_multiplier'])} per unit sensitivity"),
        (
            "sensitivity",
            f"{up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})",
        ),
        ("noise", f"standard deviation {_noise(s)} on the sum, before correlation"),
        *([] if amplified is None else [("accountant", _accountant(amplified))]),
        *([] if s["second_moment"] is None else [("second moment", _second_moment(s["second_moment"]))]),
        *([] if s["evaluation"] is None else [("evaluation", _evaluation(s["evaluation"], s["unit"]))]),
        *(line for part, said in stated(s) for line in part.lines(said)),
        ("noise key", s["noise_key"]),
        ("trust", s["trust"]),
        ("software", s["software"]),
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
    if s["evaluation_realised"] is not None:
        e = s["evaluation_realised"]
        took_part = (
            f"{e['users_participated']} {many} took part, at most {e['max_participations']} times each"
        )
        rows.append(("evaluations", f"mu = {up(e['mu'])}, {took_part}"))
    return [(name, f"{value} {_MARK}") for name, value in rows]


def _parameters(params: Mapping[str, float]) -> str:
    named = ", ".join(f"{name}={value:g}" for name, value in params.items())
    return f" ({named})" if named else ""


def _noise(s: Mapping[str, Any]) -> str:
    """The level that is accounted for, and the larger one that is added where stored noise is rounded."""
    accounted, added = _level(s["noise_std"]), _level(s["noise_std_added"])
    more = s["noise_std_added"] > s["noise_std"]
    return f"{accounted} ({added} is added, as what is kept of it is rounded)" if more else accounted


def _second_moment(second: Mapping[str, Any]) -> str:
    """The stream that the same ε covers."""
    return (
        f"{second['moment']}, {second['form']}, {second['features']} numbers under the same epsilon; "
        f"{second['mechanism']}, lambda = {up(second['weight'])}, noise of standard deviation "
        f"{_noise(second)}"
    )


def _evaluation(evaluation: Mapping[str, Any], unit: str) -> str:
    """The stream of private evaluations that the same ε covers."""
    e = evaluation
    metrics = ", ".join(
        f"{name} ({m['low']:g} to {m['high']:g}, error bar {up(m['largest_std'])})"
        for name, m in e["metrics"].items()
    )
    return (
        f"{e['evaluations_released']} of {e['evaluations']} private ones under the same epsilon, of "
        f"{e['size']} {UNITS[unit].plural} each: mu = {up(e['mu_planned'])} planned, "
        f"{100 * e['share']:g} % of mu^2; {e['mechanism']}{_parameters(e['params'])}, "
        f"workload {e['workload']}, noise multiplier {_level(e['noise_multiplier'])}; "
        f"private metrics: {metrics}"
    )


def _lost(lost: Sequence[Mapping[str, int]]) -> str:
    """What was released after backups from which the run went on; rounds counted from 1 as elsewhere."""
    ranges = ", ".join(f"{entry['first'] + 1} to {entry['released']}" for entry in lost)
    return f"{ranges}: released before a backup was restored, counted as spent"


def _accountant(amplification: Mapping[str, Any]) -> str:
    """How sure the amplified ε is."""
    text = f"{amplification['accountant']}, {amplification['method']}"
    if amplification["failure"]:
        text += f", wrong with probability {up(amplification['failure'])} at most, which delta includes"
    return text


def up(value: float | None) -> str:
    """Six digits, rounded up, or what None stands for."""
    return "infinite" if value is None else at_least(value)


def _level(value: float) -> str:
    """Noise that a claim says was added: rounded down."""
    return at_most(value)
