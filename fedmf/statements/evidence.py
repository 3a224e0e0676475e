"""What a published statement shows so that others can compute its figures again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from fedmf.accounting import gaussian_figures
from fedmf.participation import Participation
from fedmf.parts import PARTS
from fedmf.statements.header import RunHeader
from fedmf.statements.plan import Plan

#: Of the values of a run, those from which a figure or a sentence of its statement follows.
_WHOLE: Final = ("privacy", "cohorts", "mechanism", "evaluation")
_PARTS: Final = {
    "execution": ("messages", "users_per_message", "isolation", "user_seconds", "worker_gpus"),
    "local": ("engine",),
    "task": ("ranges",),
}


def evidence_of(header: RunHeader) -> dict[str, Any]:
    """The header of a run without what no figure of its statement follows from.

    Left out are the task and where its data are, the optimizer, the rest of local training and execution,
    the tensors of the model, all about a file of users' budgets, and the folder of a trace of check-ins.

    Guarantees:
        `RunHeader.from_dict` reads it, and `planned_statement` of both headers is the same. It is a function
        of the header alone: nothing in it depends on who took part.
    """
    run = {name: value for name, value in header.run.items() if name in _WHOLE or name in PARTS}
    for table, names in _PARTS.items():
        given = header.run.get(table, {})
        run[table] = {name: given[name] for name in names if name in given}
    if run["cohorts"].get("trace"):
        run["cohorts"] = {**run["cohorts"], "trace": Path(run["cohorts"]["trace"]).name}
    if "user_budgets" in run["privacy"]:
        run["privacy"] = {**run["privacy"], "user_budgets": ""}
    shown = {**header.to_dict(), "run": run, "arrays": [], "budgets": ""}
    return json.loads(json.dumps(shown, allow_nan=False))  # as it is read again: lists, no tuples


def adjacencies(plan: Plan) -> dict[str, dict[str, Any]]:
    """μ, ρ and ε of the worst user who is known to take part when, by adjacency; nothing without noise.

    One user's updates that become zero are a special case of those that become others, and updates that
    become others become zero in between: zero-out μ ≤ replace-one μ ≤ 2·zero-out μ. The last is an equality
    for one stream of sums, where ‖u − u'‖ reaches 2ζ (docs/verify.md).
    """
    if plan.noise_multiplier == 0:
        return {}
    own, exact = plan.privacy.adjacency, plan.release.is_linear
    factor = {"zero-out": 2.0 if exact else 1.0, "replace-one": 0.5}
    found: dict[str, dict[str, Any]] = {}
    for adjacency in ("zero-out", "replace-one"):
        if adjacency == own:
            sigma = plan.joint_multiplier
        else:
            sigma = math.nextafter(plan.joint_multiplier * factor[adjacency], 0.0)
        found[adjacency] = {
            **gaussian_figures(sigma, plan.privacy.delta),
            "kind": plan.sensitivity.kind if adjacency == own or exact else "upper_bound",
        }
    return found


def allowed_patterns(participation: Participation) -> int:
    """How many sets of rounds a user may take part in: Σ_{j≤k} C(n − (j − 1)(b − 1), j).

    >>> allowed_patterns(Participation(4, 2, 2))
    8
    """
    n, k, b = (
        participation.rounds,
        participation.max_participations,
        participation.min_separation,
    )
    return sum(math.comb(max(0, n - (j - 1) * (b - 1)), j) for j in range(1, k + 1)) + 1
