"""The privacy statement: one dict for runs and streams, computed from header and ledger alone."""

from __future__ import annotations

import json
from typing import Any, Final

from fedmf.records.text import text

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
    "timing: what the times of messages and the durations of rounds reveal",
    "anyone who has the noise key, such as the operator of the server or a thief: with it the noise can be "
    "subtracted, and nothing protects any more",
    "rounding inside the computer: epsilon is proved for exact numbers, and noise is added in finite "
    "precision (floating point)",
)
SPENT_NOT_COVERED: Final = (
    "publication of what was spent: those figures of this statement were computed without noise from the "
    "record of who took part, and are for the operator alone; what may be published is what fedmf account "
    "--public writes"
)
SPENT_ASSUMPTION: Final = (
    "the data decided neither who took part when nor in which round the run stopped: epsilon_spent, which "
    "is computed from the record of that, rests on it"
)


class PrivacyStatement(dict[str, Any]):
    """What a run, a stream, or several together guarantee to whom, under which assumptions.

    A dict of finite numbers, strings, lists, dicts and None; None stands for "infinite" in the privacy fields
    of a run without noise. Its list ``not_private`` names the figures that come from the record of
    participation without noise: this is the operator's statement.
    """

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)

    def to_json(self) -> str:
        """The same as indented JSON, ending in a newline."""
        return json.dumps(self, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def render_text(self, full: bool = True, rest: str = "") -> str:
        """The same in words, see `fedmf.records.text`."""
        return text(self, full, rest)

    def public(self) -> PrivacyStatement:
        """What of it may be public: nothing that depends on who took part when.

        Guarantees:
            Two runs that differ in participation alone, after as many rounds, give the same statement.
        """
        left_out = {*OPERATORS, "not_private"}
        kept = {name: value for name, value in self.items() if name not in left_out}
        kept["assumptions"] = [entry for entry in self["assumptions"] if "epsilon_spent" not in entry]
        kept["not_covered"] = [entry for entry in self["not_covered"] if entry != SPENT_NOT_COVERED]
        return PrivacyStatement(kept)
