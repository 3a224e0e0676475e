"""The privacy statement: one dict for runs and streams, computed from header and ledger alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedmf.accounting.rounding import at_least, at_most
from fedmf.ledger.durable_files import write_durably
from fedmf.statements.privacy import UNITS

_MARK: Final = " (not private)"
_LISTS: Final = {
    "assumptions": ("Holds only if", "assumptions"),
    "not_covered": ("Does not cover", "things not covered"),
    "secret": ("Must stay secret", "secrets to keep"),
}
#: (name, value), most important first; what has no value is left out.
Facts = Sequence[tuple[str, Any]]


#: What the record of participation tells without noise: keys of the operator's statement alone.
OPERATORS: Final = (
    "epsilon_spent",
    "epsilon_spent_quantiles",
    "mu_spent",
    "actual_max_participations",
    "actual_min_separation",
    "users_participated",
)
#: What neither the statement of a run nor that of a stream covers.
ALWAYS_NOT_COVERED: Final = (
    "timing: information in the times of messages and the durations of rounds",
    (
        "anyone who has the noise key, such as the operator of the server or a thief: with the key,"
        " the noise can be subtracted"
    ),
)
SPENT_NOT_COVERED: Final = (
    "publication of the spent values: these figures were computed without noise from the record of"
    " who took part, and are for the operator only; publish the statement that fedmf account"
    " --public writes"
)
SPENT_ASSUMPTION: Final = (
    "the data determined neither who took part when nor in which round the run stopped:"
    " epsilon_spent, which is computed from the record of participation, is only valid in this case"
)


class PrivacyStatement(dict[str, Any]):
    """The guarantee of a run, a stream, or several together, and its assumptions.

    A dict of finite numbers, strings, lists, dicts and None; None stands for "infinite" in the
    privacy fields of a run without noise. Its list ``not_private`` names the figures that come from
    the record of participation without noise: this is the operator's statement.
    """

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)

    def to_json(self) -> str:
        """The same as indented JSON, ending in a newline."""
        return json.dumps(self, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def render_text(self, full: bool = True, rest: str = "") -> str:
        """The guarantee in the first line, then facts, most important first.

        Args:
            full: whether all of it is told; otherwise at most twelve lines.
            rest: of a short text: where all of it is.

        Guarantees:
            It tells nothing about a single user but the worst user's ε, and depends on
            participation only through lines that are marked as not private; of a statement that may
            be public not at all.
        """
        s = self
        if full:
            facts = _composed(s) if "composed" in s else _facts(s)
            lines = [headline(s), "", *_aligned(facts, 16)]
        else:
            counts = [(len(s[name]), what) for name, (_, what) in _LISTS.items() if s[name]]
            left = ", ".join(
                f"{n} {what.replace('s ', ' ', 1) if n == 1 else what}" for n, what in counts
            )
            facts = _composed(s) if "composed" in s else _short(s)
            lines = [headline(s), *_aligned([*facts, ("statement", f"{left}: {rest}")])]
        if full:
            inputs = [
                f"{entry['name']}: {entry['value']} ({entry['source']})"
                for entry in s["public_inputs"]
            ]
            lists = {
                "Public inputs": inputs,
                **{title: s[name] for name, (title, _) in _LISTS.items()},
            }
            for title, entries in lists.items():
                if entries:
                    lines += ["", f"{title}:", *(f"  - {entry}" for entry in entries)]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write it into the directory of its run or stream, for programs and for people."""
        for name, form in (
            ("statement.json", self.to_json()),
            ("statement.txt", self.render_text()),
        ):
            write_durably(folder / name, form.encode())

    def public(self) -> PrivacyStatement:
        """The part that may be public, which does not depend on participation.

        Guarantees:
            Two runs that differ in participation alone, after as many rounds, give the same
            statement.
        """
        left_out = {*OPERATORS, *self["not_private"], "not_private"}
        kept = {name: value for name, value in self.items() if name not in left_out}
        kept["assumptions"] = [
            entry for entry in self["assumptions"] if "epsilon_spent" not in entry
        ]
        kept["not_covered"] = [entry for entry in self["not_covered"] if entry != SPENT_NOT_COVERED]
        return PrivacyStatement(kept)


def headline(statement: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    s = statement
    if s["epsilon"] is None:
        return "No privacy: this run added no noise."
    if "composed" in s:
        said = f"{len(s['composed'])} runs and streams together: every {s['unit']} has "
        said += f"{promise(s, s['epsilon'])}, against anyone who sees all that they released"
    else:
        each = f"Every {_unit(s)}" if _is_stream(s) else UNITS[s["unit"]].each
        said = (
            f"{each} has {promise(s, s['epsilon'])}, against anyone who sees all that was released"
        )
        if s["amplification"] is not None:
            known = up(s["epsilon_known_cohorts"])
            said += (
                f" but not who took part in which round; epsilon {known} against those who see"
                " that too"
            )
    if s["noise_key_public"]:
        return f"Simulation only, no privacy (public noise seed). With a secret key: {said}."
    return f"{said}."


def promise(s: Mapping[str, Any], epsilon: float | None) -> str:
    """What somebody has.

    >>> promise({"delta": 1e-5, "adjacency": "zero-out"}, 1.5)
    '(1.5, 1e-05)-differential privacy under zero-out adjacency'
    """
    return (
        f"({up(epsilon)}, {up(s['delta'])})-differential privacy under {s['adjacency']} adjacency"
    )


def up(value: float | None) -> str:
    """Six digits, rounded up, or what None stands for."""
    return "infinite" if value is None else at_least(value)


def _short(s: Mapping[str, Any]) -> Facts:
    private = s["epsilon"] is not None
    so_far = s["epsilon_so_far"]
    unit = s["unit"]
    times = _times(s)
    done = "" if so_far is None else f"{up(so_far)} after {s['rounds_released']} {times}, "
    size = f"each in at most {s['max_participations']} {times}"
    if s["users"] is not None:
        size = f"{s['users']:,}, {s['users_per_round']:,} per round, {size}"
    params = "".join(f" {name}={value:.4g}" for name, value in s["params"].items())
    norm = up(s["clip_norm"])
    noise = f"noise multiplier {at_most(s['noise_multiplier'])}, clip norm {norm}"
    also = ", ".join(name for name, _ in _also(s))
    quantiles: Mapping[str, Any] = s.get("epsilon_spent_quantiles") or {}  # of the operator alone
    spent = private and s.get("users_participated") is not None
    epsilon = f"{done}{up(s['epsilon'])} for all {s['rounds']} {times}, delta {up(s['delta'])}"
    worst = (f"worst {unit}", spent and f"epsilon {up(quantiles['1'])}{_knowing(s)}{_MARK}")
    if _is_stream(s):
        most = s["max_participations"]
        done = f"{s['rounds_released']} of them done"
        rows = (
            f"at most {most} {'row' if most == 1 else 'rows'} of each user, of norm at most {norm}"
        )
        what = f"{_released(s)}, {s['mechanism']}{params}; {rows}"
        return [("epsilon", f"{epsilon}, {done}"), ("released", what), worst]
    return [
        ("epsilon", private and epsilon),
        (f"{unit}s", size),
        ("mechanism", private and f"{s['mechanism']}{params}, {noise}"),
        ("also counted", private and also),
        worst,
        (f"median {unit}", spent and f"epsilon {up(quantiles['0.5'])}{_knowing(s)}{_MARK}"),
    ]


def _facts(s: Mapping[str, Any]) -> Facts:
    """Everything in numbers; what the record of participation tells comes last."""
    amplified = s["amplification"]
    so_far = s["epsilon_so_far"]
    params = ", ".join(f"{symbol}={value:g}" for symbol, value in s["params"].items())
    users = s["users"] is not None and f"{s['users']}, {s['users_per_round']} planned per round"
    proof = f"{s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']}"
    rows: list[tuple[str, Any]] = [
        ("epsilon", f"{up(s['epsilon'])} for all {s['rounds']} {_times(s)}"),
        ("  cohorts known", amplified and f"{up(s['epsilon_known_cohorts'])} for all rounds"),
        ("epsilon so far", so_far is not None and f"{up(so_far)} allowed by the plan"),
        ("delta", up(s["delta"])),
        ("as Gaussian DP", f"mu = {up(s['mu'])}"),
        ("unit", f"{_unit(s)}, {s['adjacency']} adjacency"),
        ("mechanism", f"{s['mechanism']} ({params})" if params else s["mechanism"]),
        ("released", _released(s)),
        (_times(s), f"{s['rounds_released']} of {s['rounds']} released"),
        ("participations", f"at most {s['max_participations']}"),
        ("separation", f"at least {s['min_separation']}"),
        ("sampling", s["sampling"]),
        (f"{s['unit']}s", users),
        ("clip norm", up(s["clip_norm"])),
        ("noise multiplier", f"{at_most(s['noise_multiplier'])} per unit sensitivity"),
        ("sensitivity", f"{up(s['sensitivity'])} ({proof})"),
        ("noise", f"standard deviation {at_most(s['noise_std'])} on the sum, before correlation"),
        ("integers", _integers(s)),
        ("accountant", amplified and _accountant(amplified)),
        *_also(s),
        ("noise key", _key(s)),
        ("trust", s.get("trust")),
        ("software", s["software"]),
    ]
    return rows if s.get("users_participated") is None else rows + _spent(s)


def _integers(s: Mapping[str, Any]) -> str | bool:
    """In which units sums and noise are integers, and what that costs."""
    if not s["unit_bits"]:
        return False
    units = " and ".join(f"2^-{bits}" for bits in dict.fromkeys(s["unit_bits"]))
    return (
        f"released sums are integers in units of {units} of their bounds, and the noise is the"
        f" correct rounding of a Gaussian; rounding adds {up(s['rounding'] / s['sensitivity'])} of"
        " the sensitivity"
    )


def _spent(s: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What the record of participation tells, each line marked."""
    quantiles = s["epsilon_spent_quantiles"]
    separation = s["actual_min_separation"]
    of = s["users"]
    least = "none repeated" if separation is None else f"separation {separation}"
    rows = [
        ("epsilon spent", f"{up(s['epsilon_spent'])} (worst {s['unit']}{_knowing(s)})"),
        (
            f"over {s['unit']}s",
            f"half at most {up(quantiles['0.5'])}, 90 % at most {up(quantiles['0.9'])}",
        ),
        ("mu spent", up(s["mu_spent"])),
        ("took part", f"{s['users_participated']}{'' if of is None else f' of {of}'} {s['unit']}s"),
        ("observed", f"at most {s['actual_max_participations']} participations, {least}"),
    ]
    return [(name, value + _MARK) for name, value in rows]


def _composed(s: Mapping[str, Any]) -> Facts:
    parts = [
        (
            part["directory"],
            f"epsilon {up(part['epsilon'])}, delta {up(part['delta'])}, {part['noise_key']}",
        )
        for part in s["composed"]
    ]
    if any(part["amplification"] for part in s["composed"]):
        epsilon, delta = (
            math.fsum(part[name] for part in s["composed"]) for name in ("epsilon", "delta")
        )
        secret = (
            f"({up(epsilon)}, {up(delta)}) if all sampled cohorts stay secret; not counted above"
        )
        parts.append(("amplification", secret))
    if s.get("users_participated") is None:
        return parts
    spent = up(s["epsilon_spent"])
    half = up(s["epsilon_spent_quantiles"]["0.5"])
    return [
        *parts,
        ("epsilon spent", f"{spent} (worst {s['unit']}), half at most {half}{_MARK}"),
    ]


def _also(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Statistics that are released in addition to the sums under the same ε."""
    own = [
        (said["name"].replace("_", " "), said["description"]) for said in s.get("statistics", ())
    ]
    second = s["second_moment"]
    if second is None or second["noise_std"] is None:
        return own
    form = f", {second['form']}, {second['features']} numbers" if "form" in second else ""
    said = f"{second['moment']}{form} under the same epsilon; {second['mechanism']}"
    said += "" if second["weight"] is None else f", lambda = {up(second['weight'])}"
    said += f", noise of standard deviation {at_most(second['noise_std'])}"
    return [("second moment", said), *own]


def _released(s: Mapping[str, Any]) -> str:
    """What a stream releases; of a run it is the models."""
    if not _is_stream(s):
        return ""
    first = s["workload"]
    second = s["second_moment"]
    works = first if second["workload"] == first else f"{first}, {second['workload']}"
    return f"{works}, {second['moment']} second moment, d = {s['dimension']}, method {s['method']}"


def _accountant(amplification: Mapping[str, Any]) -> str:
    """How sure the amplified ε is."""
    said = f"{amplification['accountant']}, {amplification['method']}"
    if amplification["failure"]:
        said += (
            f", wrong with probability at most {up(amplification['failure'])}, which delta includes"
        )
    return said


def _key(s: Mapping[str, Any]) -> str:
    if s["noise_key"] is None:
        return "none: no noise was added"
    seed = "public seed: simulation only, no privacy"
    system = "random, from the operating system"
    return f"{s['noise_key']} ({seed if s['noise_key_public'] else system})"


def _is_stream(s: Mapping[str, Any]) -> bool:
    return "workload" in s


def _times(s: Mapping[str, Any]) -> str:
    return "steps" if _is_stream(s) else "rounds"


def _knowing(s: Mapping[str, Any]) -> str:
    return " to an observer who knows its rounds" if s["amplification"] else ""


def _unit(s: Mapping[str, Any]) -> str:
    """Who has what a statement promises; of streams a row, or a user and how users are told
    apart.
    """
    if not _is_stream(s):
        return str(s["unit"])
    if s["user_column"] is not None:
        return f"user (column `{s['user_column']}`)"
    most = s["max_participations"]
    return "row" if most == 1 else f"user (of at most {most} rows, which is not checked)"


def _aligned(facts: Facts, least: int = 0) -> list[str]:
    """A line of each (name, value), with the values below each other."""
    shown = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"  {name:<{max(least, width)}}  {value}" for name, value in shown]
