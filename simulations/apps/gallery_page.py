"""The gallery's page, from its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from listed_apps import APPS, NOT_TRIED, Way

_WAYS: Final[Mapping[Way, str]] = {
    "run_app": "`run_app`",
    "flwr run": "`flwr run`",
    "supernodes": "SuperLink, SuperNodes",
}
_ADDRESS: Final = "https://github.com/adap/flower/tree"


def page_of(record: Mapping[str, Any]) -> str:
    """Markdown of a record that `gallery.py` wrote."""
    commit, trained = record["commit"], record["trained"]
    at = f"{_ADDRESS}/{commit}/examples"
    done = sum(row["as_wanted"] for row in trained)
    lines = [
        "# Apps of others, made private",
        "",
        "`make apps`, that is `python simulations/apps/gallery.py`",
        "",
        f"Flower's examples at [{commit[:10]}]({_ADDRESS}/{commit}), fetched and not copied,",
        f"{record['date']}, {record['cores']} cores. An import and `CorrelatedNoise` around the strategy",
        "that the app has; clients, models, and everything else of the server stay as they are, and so do",
        "the packages that an app asks for, but for Flower's own and pandas 3, which fl-tabular's packages",
        "do not know. Data are made up in the shape of the app's, where its own downloader keeps them;",
        "three rounds, three to eight nodes.",
        "",
        "*Yes*: three rounds were released and no client failed. *Loads*: the app's own code takes the model",
        "that was released, in every way. Seconds a round are of `run_app`, medians of the rounds after the",
        "first, without evaluation on clients; both ask equally many clients. The machine's load was about",
        f"{record['load']}, this script's own included: times tell orders of magnitude.",
        "",
        f"{done} of {len(trained)} apps do what they did, privately.",
        "",
        *_table(
            ("app", "of", "lines", *_WAYS.values(), "model loads", "seconds a round: plain", "private"),
            [_trained(row, at) for row in trained],
        ),
    ]
    notes = [note for row in trained for note in _notes(row)]
    if notes:
        lines += ["", *notes]
    absent = [app.name for app in APPS if app.name not in {row["name"] for row in trained}]
    if absent:
        lines += ["", f"In the list, and not run this time: {', '.join(absent)}."]
    lines += [
        "",
        "## Refused",
        "",
        "Before a key, a run directory or a message is made, in one line:",
        "",
        *_table(
            ("app", "of", "the line"),
            [
                (_link(row["name"], at), row["kind"], _cell(row["line"]) if row["as_wanted"] else "**no**")
                for row in record["refused"]
            ],
        ),
        "",
        "No strategy: the server app speaks with its clients itself, so there is nothing to be wrapped.",
        "",
        *_table(
            ("app", "of"),
            [(_link(row["name"], at), row["kind"]) for row in record["without_strategy"] if row["as_wanted"]],
        ),
        "",
        "## Not tried",
        "",
        *_table(("app", "why"), list(NOT_TRIED.items())),
    ]
    return "\n".join(lines) + "\n"


def _trained(row: Mapping[str, Any], at: str) -> Sequence[str]:
    changed = f"+{row['added']}" + (f" −{row['removed']}" if row["removed"] else "")
    ran = [row[way] for way in _WAYS if way in row]
    loads = "yes" if ran and all(one.get("model_loads") for one in ran) else "no"
    became = (_became(row, way) for way in _WAYS)
    plain, private = (_seconds(row.get(key)) for key in ("plain", "run_app"))
    return (_link(row["name"], at), row["kind"], changed, *became, loads, plain, private)


def _became(row: Mapping[str, Any], way: Way) -> str:
    if way not in row:
        return "–"
    return "no" if "error" in row[way] else "yes"


def _seconds(outcome: Mapping[str, Any] | None) -> str:
    value = None if outcome is None else outcome.get("round_seconds")
    return "–" if value is None else f"{value:.2g}"


def _notes(row: Mapping[str, Any]) -> list[str]:
    ways = {"plain": "the plain app", **_WAYS}
    errors = {way: row[way]["error"] for way in ways if "error" in row.get(way, {})}
    notes = [f"* {row['name']}, {ways[way]}: {_cell(error)}" for way, error in errors.items()]
    if row["workers"] is not None:
        notes.append(f"* {row['name']}, `run_app`: with `workers={row['workers']}`.")
    reasons = dict.fromkeys(row["why_not"].values())
    return notes + [f"* {row['name']}: {reason}." for reason in reasons]


def _link(name: str, at: str) -> str:
    return f"[{name}]({at}/{name})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
