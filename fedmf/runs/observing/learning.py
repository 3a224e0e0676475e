"""Whether a run is learning, told from figures that are public or were released with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedmf.runs.evaluation import private_columns
from fedmf.runs.observing.observer import is_public
from fedmf.runs.outputs import central

if TYPE_CHECKING:
    from fedmf.runs.session import Session
    from fedmf.training import Metric


#: What is said of a run.
VERDICTS: Final = ("learning", "level", "getting worse", "not learning", "cannot tell")

#: Standard errors of a difference that count as a change.
_ERRORS: Final = 2.0
#: Of a figure without an error of its own, such as a loss: the part of its value that counts as one.
_UNKNOWN: Final = 0.01


@dataclass(frozen=True)
class Figure:
    """A released model's quality.

    Args:
        rounds: after which it was released.
        value: the figure.
        error: its standard error.
    """

    rounds: int
    value: float
    error: float


@dataclass(frozen=True)
class Learning:
    """What the figures say.

    Args:
        verdict: one of `VERDICTS`.
        reason: why, in a clause.
    """

    verdict: str
    reason: str


def judge_learning(session: Session) -> Learning:
    """Judge a run by the first metric of its task, and by the loss where that metric shows no change.

    The figures of the test part are taken where nobody who is trained on owns it, else those that were
    released with noise (`PrivateEvaluation`). Exact figures of users' own examples are never looked at.

    A change counts beyond two standard errors: of noised figures those of their noise, of a share of the test
    part those of so many examples, and 1 % of the value of any other figure.

    Guarantees:
        A function of what is public or was released, so that it may be shown to everybody.
    """
    found = []
    for name, metric in [*((metric.name, metric) for metric in session.task.metrics[:1]), ("loss", None)]:
        figures, higher = _figures(session, name, metric), metric is not None and metric.higher_is_better
        found += [verdict(figures, name.replace("_", " "), higher)] if figures else []
    if not found:
        return Learning("cannot tell", session.evaluator.before_the_first)
    unchanged = found[0].verdict in ("level", "not learning")
    return found[-1] if unchanged and found[-1].verdict == "learning" else found[0]


def verdict(figures: Sequence[Figure], name: str, higher_is_better: bool) -> Learning:
    """Judge by the newest figure, that of half the rounds before, and the first one.

    Args:
        figures: at least one, by rounds.
        name: what they are.
        higher_is_better: whether a larger one is a better model.

    >>> falling = [Figure(0, 2.3, 0.02), Figure(10, 1.0, 0.01), Figure(20, 0.5, 0.01)]
    >>> verdict(falling, "loss", False).verdict, verdict(falling, "accuracy", True).verdict
    ('learning', 'getting worse')
    >>> verdict([*falling, Figure(40, 0.51, 0.01)], "loss", False)
    Learning(verdict='level', reason='loss has not changed beyond its error since round 20')
    """
    first, newest = figures[0], figures[-1]
    if newest.rounds == first.rounds:
        return Learning("cannot tell", f"{name} is known of one model only")
    if not math.isfinite(newest.value):
        return Learning("getting worse", f"{name} is not finite")
    half = next((figure for figure in reversed(figures) if 2 * figure.rounds <= newest.rounds), first)
    since, start = (_gain(older, newest, higher_is_better) for older in (half, first))
    if since > 0:
        return Learning("learning", f"{name} is better than after round {half.rounds}")
    if since < 0:
        return Learning("getting worse", f"{name} is worse than after round {half.rounds}")
    same = f"{name} has not changed beyond its error since round"
    if start > 0:
        return Learning("level", f"{same} {half.rounds}")
    return Learning("not learning", f"{same} {first.rounds}")


def _gain(older: Figure, newer: Figure, higher_is_better: bool) -> int:
    """1 for a better model, −1 for a worse one, 0 where the errors explain the difference."""
    if not math.isfinite(older.value):
        return 1
    change = newer.value - older.value if higher_is_better else older.value - newer.value
    if abs(change) <= _ERRORS * math.hypot(older.error, newer.error):
        return 0
    return 1 if change > 0 else -1


def _figures(session: Session, name: str, metric: Metric | None) -> list[Figure]:
    """Of one metric, or of the loss: those of the test part, or else the noised ones."""
    dataset, column = session.task.dataset, central(name, session.task.dataset)
    rows, tests = sorted(session.metrics.items()), len(dataset.test_labels)
    if is_public(column) and tests:
        share = metric is not None and metric.is_share
        known = [(t, row[column]) for t, row in rows if row.get(column) is not None]
        return [Figure(t, y, _share_error(y, tests) if share else _UNKNOWN * abs(y)) for t, y in known]
    value, std = private_columns(name)
    return [Figure(t, row[value], row[std]) for t, row in rows if row.get(value) is not None]


def _share_error(share: float, tests: int) -> float:
    """The standard error of a share of so many examples, not zero where all or none count."""
    p = (share * tests + 1) / (tests + 2)
    return math.sqrt(p * (1 - p) / tests)
