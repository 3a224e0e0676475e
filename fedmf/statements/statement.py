"""The privacy statement: one dict for runs and streams, computed from header and ledger alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedmf.accounting.rounding import at_least, at_most
from fedmf.figures import html_table
from fedmf.ledger.durable_files import write_durably
from fedmf.statements.advantage import advantage
from fedmf.statements.privacy import UNITS

_MARK: Final = " (not private)"
#: Columns of a stream that are named one by one.
_MOST_COLUMNS: Final = 20
_LISTS: Final = {
    "assumptions": ("Holds only if", "assumptions"),
    "not_covered": ("Does not cover", "things not covered"),
    "secret": ("Must stay secret", "secrets to keep"),
}
#: Name and value; a fact without a value is left out.
Fact = tuple[str, str | None]
#: Most important first.
Facts = Sequence[Fact]
#: Keys of the operator's statement alone: figures without noise, from the record of participation.
OPERATORS: Final = (
    "epsilon_spent",
    "epsilon_spent_quantiles",
    "mu_spent",
    "actual_max_participations",
    "actual_min_separation",
    "users_participated",
)
#: The files of a statement in the directory of its run or stream.
JSON: Final = "statement.json"
TEXT: Final = "statement.txt"
#: Neither the statement of a run nor that of a stream covers these.
ALWAYS_NOT_COVERED: Final = (
    "timing: information in the times of messages and the durations of rounds",
    (
        "anyone who has the noise key, such as its operator or a thief: with the key, the noise can"
        " be subtracted"
    ),
)
SPENT_NOT_COVERED: Final = (
    "publication of the spent values: these figures were computed without noise from the record of"
    " who took part, and are for the operator only; publish the statement that fedmf account"
    " --public writes"
)
SPENT_ASSUMPTION: Final = (
    "epsilon_spent, which is computed from the record of who took part when, holds only if the data"
    " determined neither this record nor in which round the run stopped"
)
#: What a run is compared with, by adjacency.
_COMPARED: Final = {
    "zero-out": "compared with contributing nothing",
    "replace-one": "compared with contributing any other data",
}


class PrivacyStatement(dict[str, Any]):
    """The guarantee of a run, a stream, or several together, and its assumptions.

    A dict of finite numbers, strings, lists, dicts and None; None stands for "infinite" in the
    privacy fields of a run without noise. Its list ``not_private`` names the figures that come from
    the record of participation without noise: this is the operator's statement.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)

    def to_json(self) -> str:
        """Return indented JSON that ends in a newline."""
        return json.dumps(self, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def render_text(self, full: bool = True, rest: str = "") -> str:
        """Return the guarantee in the first line, then facts, most important first.

        Args:
            full: whether everything is shown; otherwise at most twelve lines.
            rest: the place of the full statement, for a short text.

        Guarantees:
            The text reveals nothing about a single user except the worst user's ε. It depends on
            participation only through lines that are marked as not private, and not at all for a
            statement that may be public.
        """
        if not full:
            counts = self.counts()
            if rest:
                counts += f": {rest}"
            facts = [*_short(self), ("statement", counts)]
            return _lines([headline(self), *_aligned(facts)])
        lines = [headline(self), "", *_aligned(_facts(self), 16)]
        inputs = list[str]()
        for entry in self["public_inputs"]:
            inputs.append(f"{entry['name']}: {entry['value']} ({entry['source']})")
        lists = [("Public inputs", inputs)]
        public = self.public()
        spent = list[str]()
        for name, (title, _) in _LISTS.items():
            lists.append((title, public[name]))
            spent += [entry for entry in self[name] if entry not in public[name]]
        lists.append(("About the spent values, which are for the operator only", spent))
        for title, entries in lists:
            if entries:
                lines += ["", f"{title}:"]
                lines += [f"  - {entry}" for entry in entries]
        return _lines(lines)

    def counts(self) -> str:
        """The numbers of assumptions and the like, such as "9 assumptions, 1 secret to keep".

        They are those of the guarantee, whether or not the statement holds spent values too.
        """
        public = self.public()
        counts = list[str]()
        for name, (_, plural) in _LISTS.items():
            n = len(public[name])
            if n == 1:
                counts.append(f"1 {plural.replace('s ', ' ', 1)}")
            elif n > 1:
                counts.append(f"{n} {plural}")
        return ", ".join(counts)

    def _repr_html_(self) -> str:
        facts = [("privacy", headline(self)), *_short(self), ("statement", self.counts())]
        return html_table([(name, value) for name, value in facts if value])

    def write(self, folder: Path) -> None:
        """Write it into the directory of its run or stream, for programs and for people."""
        write_durably(folder / JSON, self.to_json().encode())
        write_durably(folder / TEXT, self.render_text().encode())

    def public(self) -> PrivacyStatement:
        """Return the part that may be public, which does not depend on participation.

        Guarantees:
            Two runs that differ in participation alone, after as many rounds, give the same
            statement, except for the digests of what they released.
        """
        public = PrivacyStatement(self)
        for name in (*OPERATORS, *self.get("not_private", ()), "not_private"):
            public.pop(name, None)
        assumptions = self["assumptions"]
        public["assumptions"] = [each for each in assumptions if "epsilon_spent" not in each]
        not_covered = self["not_covered"]
        public["not_covered"] = [each for each in not_covered if each != SPENT_NOT_COVERED]
        return public


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    s = statement
    if s["epsilon"] is None:
        return "No privacy: this run added no noise."
    guarantee = promise(s, s["epsilon"])
    if "composed" in s:
        sentence = (
            f"{len(s['composed'])} runs and streams together: every {s['unit']} has {guarantee},"
            " against anyone who sees all that they released"
        )
    else:
        each = UNITS[s["unit"]].each
        if _is_stream(s):
            each = f"Every {_unit(s)}"
        sentence = f"{each} has {guarantee}, against anyone who sees all that was released"
        if s["amplification"] is not None:
            known = up(s["epsilon_known_cohorts"])
            sentence += (
                f" but not who took part in which round; epsilon {known} against those who see"
                " that too"
            )
    if s["noise_key_public"]:
        return f"Simulation only, no privacy (public noise seed). With a secret key: {sentence}."
    return f"{sentence}."


def promise(s: Mapping[str, Any], epsilon: float | None) -> str:
    """The guarantee that a user or example has.

    >>> promise({"delta": 1e-5, "adjacency": "zero-out"}, 1.5)
    '(1.5, 1e-05)-differential privacy, compared with contributing nothing (zero-out adjacency)'
    """
    adjacency = s["adjacency"]
    return (
        f"({up(epsilon)}, {up(s['delta'])})-differential privacy, {_COMPARED[adjacency]}"
        f" ({adjacency} adjacency)"
    )


def up(value: float | None) -> str:
    """Six digits, rounded up; "infinite" for None."""
    if value is None:
        return "infinite"
    return at_least(value)


def _short(s: Mapping[str, Any]) -> Facts:
    return [*_short_facts(s), ("this copy", s.get("this_copy"))]


def _short_facts(s: Mapping[str, Any]) -> Facts:
    if "composed" in s:
        return _composed(s)
    if s["epsilon"] is None:
        return [(f"{s['unit']}s", _size(s))]
    times = _times(s)
    so_far = ""
    if s["epsilon_so_far"] is not None:
        so_far = f"{up(s['epsilon_so_far'])} after {s['rounds_released']} {times}, "
    epsilon = f"{so_far}{up(s['epsilon'])} for all {s['rounds']} {times}, delta {up(s['delta'])}"
    worst, median = _typical_users(s)
    norm = up(s["clip_norm"])
    mechanism = s["mechanism"]
    mechanism += "".join(f" {name}={value:.4g}" for name, value in s["params"].items())
    if _is_stream(s):
        rows = f"at most {_rows(s)} of each user, of norm at most {norm}"
        return [
            ("epsilon", f"{epsilon}, {s['rounds_released']} of them done"),
            ("released", f"{_released(s)}, {mechanism}; {rows}"),
            worst,
        ]
    noise = f"noise multiplier {at_most(s['noise_multiplier'])}, clip norm {norm}"
    return [
        ("epsilon", epsilon),
        (f"{s['unit']}s", _size(s)),
        ("mechanism", f"{mechanism}, {noise}"),
        ("also counted", ", ".join(name for name, _ in _also(s))),
        worst,
        median,
    ]


def _size(s: Mapping[str, Any]) -> str:
    size = f"each in at most {_counted(s['max_participations'], _times(s))}"
    if s["users"] is None:
        return size
    return f"{s['users']:,}, {s['users_per_round']:,} per round, {size}"


def _rows(s: Mapping[str, Any]) -> str:
    if s.get("periods"):
        return f"1 mean in each of {s['max_participations']} periods"
    return _counted(s["max_participations"], "rows")


def _counted(number: int, things: str) -> str:
    """A number of things in words, such as "1 round" or "3 rounds"."""
    if number == 1:
        return f"1 {things.removesuffix('s')}"
    return f"{number} {things}"


def _typical_users(s: Mapping[str, Any]) -> tuple[Fact, Fact]:
    """The spent ε of the worst and the median user; None in a statement that may be public."""
    worst = f"worst {s['unit']}"
    median = f"median {s['unit']}"
    if s.get("users_participated") is None:
        return (worst, None), (median, None)
    quantiles = s["epsilon_spent_quantiles"]
    knowing = f"{_knowing(s)}{_MARK}"
    return (
        (worst, f"epsilon {up(quantiles['1'])}{knowing}"),
        (median, f"epsilon {up(quantiles['0.5'])}{knowing}"),
    )


def _facts(s: Mapping[str, Any]) -> Facts:
    """All figures; those from the record of participation come last."""
    return [("this copy", s.get("this_copy")), *_figures(s)]


def _figures(s: Mapping[str, Any]) -> Facts:
    if "composed" in s:
        return _composed(s)
    known_cohorts = None
    if s["amplification"] is not None:
        known_cohorts = f"{up(s['epsilon_known_cohorts'])} for all rounds"
    so_far = None
    if s["epsilon_so_far"] is not None:
        so_far = f"{up(s['epsilon_so_far'])} allowed by the plan"
    mechanism = s["mechanism"]
    if s["params"]:
        params = ", ".join(f"{symbol}={value:g}" for symbol, value in s["params"].items())
        mechanism += f" ({params})"
    users = None
    if s["users"] is not None:
        users = f"{s['users']}, {s['users_per_round']} planned per round"
    facts: list[Fact] = [
        ("epsilon", f"{up(s['epsilon'])} for all {s['rounds']} {_times(s)}"),
        ("  cohorts known", known_cohorts),
        ("epsilon so far", so_far),
        ("delta", up(s["delta"])),
        ("attacker", _attacker(s)),
        ("unit", f"{_unit(s)}, {_COMPARED[s['adjacency']]} ({s['adjacency']} adjacency)"),
        ("mechanism", mechanism),
        ("released", _released(s)),
        ("columns", _columns(s)),
        (_times(s), f"{s['rounds_released']} of {s['rounds']} released{_dates(s)}"),
        ("participations", f"at most {s['max_participations']}"),
        ("separation", f"at least {s['min_separation']}"),
        ("sampling", s["sampling"]),
        (f"{s['unit']}s", users),
        ("clip norm", up(s["clip_norm"])),
        ("noise multiplier", f"{at_most(s['noise_multiplier'])} per unit sensitivity"),
        ("sensitivity", _sensitivity(s)),
        (
            "noise",
            f"made from new Gaussian numbers of standard deviation {at_most(s['noise_std'])} for"
            " each released sum, which the mechanism then correlates",
        ),
        ("integers", _integers(s)),
        ("accountant", _accountant(s)),
        *_also(s),
        *_digests(s),
        ("noise key", _key(s)),
        ("trust", s.get("trust")),
        ("software", s["software"]),
    ]
    if s.get("users_participated") is not None:
        facts += _spent(s)
    return facts


def _attacker(s: Mapping[str, Any]) -> str | None:
    """μ as the share of right guesses, and by its name."""
    if s["mu"] is None:
        return None
    right = at_least(50 + 50 * advantage(s), 3)
    return (
        f"right in at most {right} % of guesses whether one {s['unit']}'s data were used, where a"
        f" coin is right in 50 % (Gaussian DP with mu = {up(s['mu'])})"
    )


def _sensitivity(s: Mapping[str, Any]) -> str:
    """How far one user can move the releases, and by which proof."""
    kind = "an upper bound on the change"
    if s["sensitivity_kind"] == "exact":
        kind = "exactly the largest change"
    return (
        f"{up(s['sensitivity'])} clip norms, {kind} of all sums together if one {s['unit']} takes"
        f" part (proof: {s['sensitivity_case']})"
    )


def _integers(s: Mapping[str, Any]) -> str | None:
    """The units in which sums and noise are integers, and the cost of rounding to them."""
    if not s["unit_bits"]:
        return None
    units = " and ".join(f"2^-{bits}" for bits in dict.fromkeys(s["unit_bits"]))
    return (
        f"released sums are integers in units of {units} of their bounds, and the noise is the"
        f" correct rounding of a Gaussian; rounding adds {up(s['rounding'] / s['sensitivity'])} of"
        " the sensitivity"
    )


def _spent(s: Mapping[str, Any]) -> list[Fact]:
    """The figures from the record of participation, each marked as not private."""
    quantiles = s["epsilon_spent_quantiles"]
    repeats = "none repeated"
    if s["actual_min_separation"] is not None:
        repeats = f"separation {s['actual_min_separation']}"
    participated = f"{s['users_participated']} {s['unit']}s"
    if s["users"] is not None:
        participated = f"{s['users_participated']} of {s['users']} {s['unit']}s"
    half = f"half at most {up(quantiles['0.5'])}, 90 % at most {up(quantiles['0.9'])}"
    most = f"at most {s['actual_max_participations']} participations, {repeats}"
    return [
        (
            "epsilon spent",
            f"{up(s['epsilon_spent'])} (worst {s['unit']}{_knowing(s)}){_MARK}",
        ),
        (f"over {s['unit']}s", half + _MARK),
        ("mu spent", up(s["mu_spent"]) + _MARK),
        ("took part", participated + _MARK),
        ("observed", most + _MARK),
    ]


def _composed(s: Mapping[str, Any]) -> Facts:
    facts = list[Fact]()
    epsilons = list[float]()
    deltas = list[float]()
    amplified = False
    for part in s["composed"]:
        guarantee = f"epsilon {up(part['epsilon'])}, delta {up(part['delta'])}"
        facts.append((part["directory"], f"{guarantee}, {part['noise_key']}; {part['counted']}"))
        epsilons.append(part["epsilon"])
        deltas.append(part["delta"])
        amplified |= bool(part["amplification"])
    if amplified:
        total = f"({up(math.fsum(epsilons))}, {up(math.fsum(deltas))})"
        secret = f"{total} if all sampled cohorts stay secret; not counted above"
        facts.append(("amplification", secret))
    if s.get("users_participated") is not None:
        half = up(s["epsilon_spent_quantiles"]["0.5"])
        spent = f"{up(s['epsilon_spent'])} (worst {s['unit']}), half at most {half}{_MARK}"
        facts.append(("epsilon spent", spent))
    return facts


def _also(s: Mapping[str, Any]) -> list[Fact]:
    """Statistics that are released in addition to the sums under the same ε."""
    facts = list[Fact]()
    second = s["second_moment"]
    if second is not None and second["noise_std"] is not None:
        text = second["moment"]
        if "form" in second:
            text += f", {second['form']}, {second['features']} numbers"
        text += f" under the same epsilon; {second['mechanism']}"
        if second["weight"] is not None:
            text += f", lambda = {up(second['weight'])}"
        text += f", noise of standard deviation {at_most(second['noise_std'])}"
        facts.append(("second moment", text))
    for statistic in s.get("statistics", ()):
        facts.append((statistic["name"].replace("_", " "), statistic["description"]))
    return facts


def _released(s: Mapping[str, Any]) -> str | None:
    """The releases of a stream; None for a run, which releases models."""
    if not _is_stream(s):
        return None
    second = s["second_moment"]
    workloads = ", ".join(dict.fromkeys([s["workload"], second["workload"]]))
    size = f"d = {len(s['columns'])}"
    if s.get("periods"):
        size += " and a count of users"
    elif s["dimension"] > len(s["columns"]):
        size += " and a count of valid rows"
    return f"{workloads}, {second['moment']} second moment, {size}, method {s['method']}"


def _columns(s: Mapping[str, Any]) -> str | None:
    """The columns of a stream, the first ones of many."""
    if not _is_stream(s):
        return None
    names = ", ".join(s["columns"][:_MOST_COLUMNS])
    if len(s["columns"]) > _MOST_COLUMNS:
        names += f", … ({len(s['columns'])} in all)"
    return names


def _dates(s: Mapping[str, Any]) -> str:
    """The calendar of a stream of periods; empty for others."""
    periods = s.get("periods")
    if not periods:
        return ""
    dates = f"from {periods['start']} to before {periods['end']}".replace("T00:00:00", "")
    return f"; each is {periods['every']}, {dates}"


def _digests(s: Mapping[str, Any]) -> list[Fact]:
    """The released files, as ``sha256sum`` prints them."""
    files = s["released_files"] or {}
    return [("SHA-256", f"{digest}  {name}") for name, digest in files.items()]


def _accountant(s: Mapping[str, Any]) -> str | None:
    """The accountant of an amplified ε, and how certain it is."""
    amplification = s["amplification"]
    if not amplification:
        return None
    text = f"{amplification['accountant']}, {amplification['method']}"
    if amplification["failure"]:
        failure = up(amplification["failure"])
        text += f", wrong with probability at most {failure}, which delta includes"
    return text


def _key(s: Mapping[str, Any]) -> str:
    if s["noise_key"] is None:
        return "none: no noise was added"
    if s["noise_key_public"]:
        return f"{s['noise_key']} (public seed: simulation only, no privacy)"
    return f"{s['noise_key']} (random, from the operating system)"


def _is_stream(s: Mapping[str, Any]) -> bool:
    return "workload" in s


def _times(s: Mapping[str, Any]) -> str:
    if s.get("periods"):
        return "periods"
    if _is_stream(s):
        return "steps"
    return "rounds"


def _knowing(s: Mapping[str, Any]) -> str:
    if s["amplification"]:
        return " to an observer who knows its rounds"
    return ""


def _unit(s: Mapping[str, Any]) -> str:
    """The unit of protection; for a stream a row, or a user and how its rows are recognized."""
    if not _is_stream(s):
        return str(s["unit"])
    if s["user_column"] is not None:
        return f"user (column `{s['user_column']}`)"
    if s["max_participations"] == 1:
        return "row"
    return f"user (of at most {s['max_participations']} rows, which is not checked)"


def _aligned(facts: Facts, least: int = 0) -> list[str]:
    """One line per fact, with the values below each other."""
    shown = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"  {name:<{max(least, width)}}  {value}" for name, value in shown]
