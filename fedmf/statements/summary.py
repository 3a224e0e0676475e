"""The privacy statement of a run on one screen: what it is worth, in at most twelve lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedmf.accounting import UNITS, at_most
from fedmf.parts import stated
from fedmf.statements.text import headline, up, verdict_lines

#: Lines of a short form.
_LINES: Final = 12

_MARK: Final = "(not private)"


def laid_out(heading: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    """The short form of any statement.

    Args:
        heading: the guarantee, and before it what must be read first; a line each.
        rows: (name, value), most important first; a value that is empty has nothing to say and is left out.
    """
    said = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in said), default=0)
    return "\n".join([*heading, *(f"  {name:<{width}}  {value}" for name, value in said)]) + "\n"


def summarise(
    statement: Mapping[str, Any], rest: str, model: Sequence[tuple[str, str]] = (), place: str = ""
) -> str:
    """The operator's statement of a run, `PrivacyStatement.to_dict`, in at most twelve lines.

    Args:
        statement: of the run.
        rest: where all of it is.
        model: (name, value) of what is known of the model, two rows at most.
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
        ("statement", f"{what_it_leaves(s)}: {rest}"),
        ("files", place),
    ]
    return laid_out([*what_speaks_against(s), *_refuted(s), headline(s)], rows)


def shortened(text: str, rest: str) -> str:
    """What comes first in a statement on several directories, in at most twelve lines.

    Args:
        text: the whole of it.
        rest: the command that prints it.
    """
    lines = [line for line in text.split("\n\nAssumes:")[0].splitlines() if line]
    return "\n".join([*lines[: _LINES - 1], f"  what it assumes, and all of it: {rest}"]) + "\n"


def what_speaks_against(statement: Mapping[str, Any]) -> list[str]:
    """What keeps records from being evidence of all that was released, a line each; none if nothing does."""
    return verdict_lines(statement) if statement.get("records", {}).get("faults") else []


def what_it_leaves(statement: Mapping[str, Any]) -> str:
    """What the records are where nothing speaks against them, and how much there is to read besides."""
    counted = {"assumptions": "assumptions", "not_covered": "things not covered", "secret": "secrets to keep"}
    left = ", ".join(f"{len(statement[name])} {what}" for name, what in counted.items())
    records = statement.get("records", {"faults": True})
    return left if records["faults"] else f"record {records['verdict']}; {left}"


def _median(s: Mapping[str, Any]) -> float | None:
    median: float | None = s["epsilon_realised_quantiles"]["0.5"]
    return median


def _refuted(s: Mapping[str, Any]) -> list[str]:
    found = [part.against(said) for part, said in stated(s)]
    return [says for says in found if says is not None]


def _epsilon(s: Mapping[str, Any]) -> str:
    planned, so_far = f"{up(s['epsilon_planned'])} for all {s['rounds']} rounds", s["epsilon_planned_so_far"]
    if so_far is not None:
        planned = f"{up(so_far)} after {s['rounds_released']} rounds, {planned}"
    lost = sum(entry["released"] - entry["first"] for entry in s["rounds_lost"])
    return f"{planned}, delta {up(s['delta'])}" + (f"; {lost} lost rounds count" if lost else "")


def _mechanism(s: Mapping[str, Any]) -> str:
    params = "".join(f" {name}={value:.4g}" for name, value in s["params"].items())
    norm = up(s["clip_norm"]) + "".join(part.in_short(said).get("clip norm", "") for part, said in stated(s))
    return f"{s['mechanism']}{params}, noise multiplier {at_most(s['noise_multiplier'])}, clip norm {norm}"


def _also(s: Mapping[str, Any]) -> str:
    """What is released beside the model under the same ε."""
    parts = {"second_moment": "second moment", "evaluation": "private evaluations"}
    own = [name for part, said in stated(s) for name, _ in part.lines(said)]
    return ", ".join([*(name for key, name in parts.items() if s[key] is not None), *own])
