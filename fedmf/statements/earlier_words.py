"""Sentences of statements as earlier versions of fedmf wrote them, for whoever reads a published statement.

A published statement is signed as it stands, so its words cannot be made new; it is verified with what each
of its sentences is called today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting import ROUNDED_STORAGE, UNITS
from fedmf.parts import PARTS
from fedmf.statements.words import (
    ASSUMPTIONS,
    INEXACT_GROUPS,
    LOST_ROUNDS,
    NOT_COVERED,
    NOT_PRIVATE,
    REALISED_ASSUMPTION,
    REALISED_NOT_COVERED,
    SECRECY,
    SECRET_COHORTS,
    SECRETS,
    SHARED_TIME,
    SHARED_WORKERS,
    TRUST,
)
from fedmf.values import in_full

#: (as it was, as it is) with the places of `Unit.say`; both mean the same.
_FIRST_RELEASE: Final = (
    (
        "evaluation metrics on held-out data are computed without noise: test {many} have no protection",
        NOT_COVERED[0],
    ),
    (
        "hyper-parameter search: each further run on the same {many} adds to what they lose",
        NOT_COVERED[1],
    ),
    (
        "the number and identity of participants and the ledger itself are not released by the mechanism; "
        "publishing them is outside the guarantee",
        NOT_COVERED[2],
    ),
    (
        "what the times at which messages arrive and the durations of rounds tell",
        NOT_COVERED[3],
    ),
    (
        "compromise of the noise key: whoever learns it can subtract the noise",
        NOT_COVERED[4],
    ),
    (
        "floating point: the analysis is for real numbers, the noise is added in finite precision",
        NOT_COVERED[5],
    ),
    (
        "every {one}'s update was clipped to the clip norm before it was summed",
        ASSUMPTIONS[0],
    ),
    (
        "one {one}'s data change that {one}'s own contribution and nothing else: not which other {many}' "
        "updates are in a sum, not which rounds there are, not when the run ends. epsilon_planned then "
        "holds whatever the examples are; {broken} enters as a zero vector",
        ASSUMPTIONS[1],
    ),
    (
        "epsilon_planned_so_far holds if the round at which the run stopped does not depend on the data",
        ASSUMPTIONS[2],
    ),
    (
        "the noise key (noise.key) and every backup of it: for ever, also after the run",
        SECRETS[0],
    ),
    (
        "the sums and updates before noise, wherever they were logged or kept",
        SECRETS[1],
    ),
    (
        "the record of participation (ledger.sqlite, evaluation.sqlite), files of single {many}' budgets "
        "and exports of it",
        SECRETS[2],
    ),
    (
        "which {many} failed and why (failures.jsonl): it tells about their data",
        SECRETS[3],
    ),
    (
        "realised figures in this statement are computed from the record of participation without noise: "
        "they are for the operator, and what may be published is what fedmf account --publish writes",
        REALISED_NOT_COVERED,
    ),
    (
        "no worker process is killed by the system because of {a}'s data: such a worker's reply would count"
        " as zero for all its {many} (isolation 'process' trains each {one} in a process of its own)",
        SHARED_WORKERS,
    ),
    (
        "no {one}'s data hold up the reply of the node beyond the time limit of a round: all {many} of the "
        "message would be absent (isolation 'process' with user_seconds limits each {one}'s time)",
        SHARED_TIME,
    ),
    (
        "the rounding of other {many}' updates, which depends on how many examples {a} has where {many} are"
        " computed together on a GPU or with engine 'vectorised', tells nothing",
        INEXACT_GROUPS,
    ),
    (
        "epsilon_realised holds if neither {a}'s participation nor the round at which the run stopped "
        "depends on the data",
        REALISED_ASSUMPTION,
    ),
    (
        "this run went on from a backup: rounds released after it are counted as spent, by every {one} that"
        " was planned for them, and no others were released",
        LOST_ROUNDS,
    ),
    (
        "noise that is kept is rounded, which a larger noise makes up for but with probability 1e-20: delta"
        " is larger by as much",
        ROUNDED_STORAGE,
    ),
    (
        "epsilon_planned and epsilon_planned_so_far hold while the cohorts, drawn as the sampling says, "
        "stay secret: whoever knows who took part when has epsilon_planned_known_cohorts at most",
        SECRECY,
    ),
    (
        "who took part in which round: the amplified epsilon_planned holds only against those who do not "
        "know it",
        SECRET_COHORTS,
    ),
    (
        "central test part: its examples belong to users that are trained on; the metrics whose names end "
        "in not_private were computed on them without noise, no epsilon counts them, and publishing them is"
        " outside the guarantee",
        NOT_PRIVATE["central test part"],
    ),
    (
        "federated evaluation: this run computed metrics on the very examples that it trains on without "
        "noise; no epsilon counts them, they depend on who took part in which round, and publishing them is"
        " outside the guarantee",
        NOT_PRIVATE["federated evaluation"],
    ),
    (
        "server re-clips every {one}'s update",
        TRUST["server"],
    ),
    (
        "workers clip; the server trusts the slice sums",
        TRUST["workers"],
    ),
    (
        "every user id belongs to one person who takes part under no other id",
        UNITS["user"].distinct,
    ),
    (
        "every example is one contributor of the record of participation, and is the data of one person: a "
        "copy of it under another id counts as another example",
        UNITS["example"].distinct,
    ),
    (
        "a person with several examples: epsilon is that of one example, and what all examples of one "
        "person lose together grows with their number",
        UNITS["example"].not_covered[0],
    ),
)


def in_todays_words(statement: Mapping[str, Any]) -> dict[str, Any]:
    """A published statement with what an earlier version wrote as it is written today: sentences, and fields
    of parts that came later.

    Args:
        statement: as published, of any version; other values than known sentences stay as they are.

    Guarantees:
        A sentence that no version wrote stays, so that it is still compared with what follows.
    """
    stated = {name: statement[name] for name in PARTS if isinstance(statement.get(name), Mapping)}
    words = {**statement, **{name: in_full(PARTS[name], facts) for name, facts in stated.items()}}
    unit = UNITS.get(str(words.get("unit")))
    if unit is None:
        return words
    known = {unit.say(before): unit.say(now) for before, now in _FIRST_RELEASE}

    def today(text: Any) -> Any:
        return known.get(text, text) if isinstance(text, str) else text

    for name in ("assumptions", "not_covered", "secret"):
        if isinstance(words.get(name), list):
            words[name] = [today(text) for text in words[name]]
    return {**words, "trust": today(words["trust"])} if "trust" in words else words
