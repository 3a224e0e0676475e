"""What NIST SP 800-226 asks of a claim of differential privacy, answered from a published statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.accounting.disclosure.deployment import Deployment
from fedmf.accounting.disclosure.entry import require_public
from fedmf.accounting.rounding import at_least, at_most

__all__ = ["nist_fields", "nist_table"]


def nist_fields(statement: Mapping[str, Any], deployment: Deployment) -> list[dict[str, str]]:
    """(part, field, value) of the pyramid of SP 800-226, from its top to its bottom, JSON-able.

    Args:
        statement: what `PrivacyStatement.public` gives, also after JSON.
        deployment: what no statement knows.

    Raises:
        ValueError: as `registry_entry`.

    References:
        Near, Darais, Lefkovitz and Howarth (2025), "Guidelines for Evaluating Differential Privacy
        Guarantees", NIST SP 800-226: parameters and unit; algorithms, utility, bias; access control, trust
        models, side channels, exposure of data where they are collected.
    """
    s = require_public(statement)
    covered = {
        word: "; ".join(text for text in s["not_covered"] if word in text)
        for word in ("times at which", "floating point", "hyper-parameter", "metrics")
    }
    rows = [
        ("privacy parameters", "epsilon", _epsilon(s)),
        ("privacy parameters", "delta", at_least(s["delta"])),
        ("privacy parameters", "mu (Gaussian DP), rho (zCDP)", _others(s)),
        ("unit of privacy", "unit", s["unit"]),
        ("unit of privacy", "neighbouring data sets", s["adjacency"]),
        ("unit of privacy", "contribution bound", _bound(s)),
        ("algorithms", "mechanism", f"Gaussian, correlated over rounds: {s['mechanism']}"),
        ("algorithms", "sensitivity", f"{at_least(s['sensitivity'])} ({s['sensitivity_kind']})"),
        ("algorithms", "noise multiplier", at_most(s["noise_multiplier"])),
        ("algorithms", "sampling", s["sampling"]),
        ("algorithms", "composition", f"one mechanism for all {s['rounds']} rounds"),
        (
            "correctness",
            "how it can be checked",
            "fedmf verify: figures follow from published coefficients",
        ),
        ("correctness", "randomness", s["noise_key"]),
        ("correctness", "arithmetic", covered["floating point"]),
        ("correctness", "tuning", covered["hyper-parameter"]),
        ("utility", "noise", f"standard deviation {at_most(s['noise_std'])} before correlation, of each sum"),
        ("utility", "metrics", covered["metrics"]),
        ("bias", "error for groups of people", deployment.bias or "not stated by the operator"),
        ("access control", "must stay secret", "; ".join(s["secret"])),
        ("trust model", "model", f"central: {s['trust']}"),
        ("trust model", "assumptions", "; ".join(s["assumptions"])),
        ("side channels", "not covered", covered["times at which"]),
        ("data collection", "exposure", f"what reaches the server are updates or their sums: {s['trust']}"),
        ("data collection", "taken as public", "; ".join(e["name"] for e in s["public_inputs"]) or "nothing"),
    ]
    return [{"part": part, "field": field, "value": value} for part, field, value in rows]


def nist_table(fields: list[dict[str, str]]) -> str:
    """The fields as a table in Markdown."""
    lines = ["| part | field | value |", "|---|---|---|"]
    lines += [f"| {row['part']} | {row['field']} | {_cell(row['value'])} |" for row in fields]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _epsilon(s: Mapping[str, Any]) -> str:
    text = f"{at_least(s['epsilon_planned'])} for all {s['rounds']} rounds"
    if s["amplification"] is not None:
        known = at_least(s["epsilon_planned_known_cohorts"])
        text += f" while cohorts stay secret; {known} against whoever knows them"
    return text


def _others(s: Mapping[str, Any]) -> str:
    suffix = "" if s["amplification"] is None else " against whoever knows the cohorts"
    return f"{at_least(s['mu_planned'])}, {at_least(s['rho_planned'])}{suffix}"


def _bound(s: Mapping[str, Any]) -> str:
    return (
        f"norm {s['clip_norm']} in each of at most {s['max_participations']} of {s['rounds']} rounds, at "
        f"least {s['min_separation']} apart"
    )
