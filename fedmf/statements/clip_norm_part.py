"""What a privacy statement says of the clip norm: its rule, and what it did where it adapts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.accounting import ParticipationRecord, at_least
from fedmf.statements.plan import Plan


def clip_norm_part(plan: Plan, record: ParticipationRecord) -> dict[str, Any]:
    """The rule, and ζ by rounds released as far as it was noted, JSON-able."""
    noted = record.metrics() if plan.clipping.adapts else {}
    norms = {str(t): float(row["clip_norm"]) for t, row in noted.items() if "clip_norm" in row}
    return {**plan.clipping.to_dict(), "clip_norms": norms}


def clip_norm_words(statement: Mapping[str, Any]) -> tuple[str, str]:
    """What follows the clip norm and the noise level in a statement's text."""
    rule, first = statement["clipping"], at_least(statement["clip_norm"])
    if rule["kind"] == "fixed":
        return first, ""
    norms = list(rule.get("clip_norms", {}).values())
    course = (
        f", {at_least(norms[-1])} at last, {at_least(min(norms))} to {at_least(max(norms))}" if norms else ""
    )
    return (
        f"{first} at first{course}: follows the noisy {rule['quantile']:g}-quantile of norms, for "
        f"{100 * rule['share']:g} % of mu^2; epsilon does not depend on what it did",
        ", at the first clip norm; it goes with the clip norm",
    )
