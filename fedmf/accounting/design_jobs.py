"""The rows of a comparison, computed closed forms first, and in several processes where that pays."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedmf.factorization import MechanismChoice, single_threaded

__all__ = ["Job", "Row", "rows_of"]

Row = dict[str, Any]
#: The row of a choice; a `ValueError` says that it has none.
RowOf = Callable[[MechanismChoice], Row]

# Starting a process takes about a second, more than all of a shorter table.
_FEWEST_ROUNDS = 500
# Above this many rounds searches of closed forms take seconds as well.
_LONG_SEARCH = 20_000


@dataclass(frozen=True, eq=False)
class Job:
    """One row that is wanted.

    Args:
        choice: of the mechanism.
        required: whether it is an error that it cannot be built; it is left out otherwise.
    """

    choice: MechanismChoice
    required: bool


def rows_of(
    jobs: Sequence[Job],
    row_of: RowOf,
    rounds: int,
    processes: int = 1,
    progress: Callable[[str], None] | None = None,
    arrived: Callable[[Row], None] | None = None,
) -> list[Row]:
    """The rows in the order of the jobs, computed in order of effort.

    Args:
        jobs: what is wanted.
        row_of: computes a row; with several processes it must be picklable.
        rounds: n, from which follows what is worth a process.
        processes: how many may compute; 1 for this one alone.
        progress: called with the name of each job that is begun here, or was finished elsewhere.
        arrived: called with each row as soon as it is there.

    Raises:
        ValueError: the first of the required jobs' refusals; or that of the first job if no row is left.
    """
    tell, show = progress or (lambda name: None), arrived or (lambda row: None)
    rows: dict[int, Row] = {}
    refused: dict[int, ValueError] = {}

    def take(at: int, outcome: Row | ValueError) -> None:
        if not isinstance(outcome, ValueError):
            rows[at] = outcome
            show(outcome)
        elif jobs[at].required:
            raise outcome
        else:
            refused[at] = outcome

    by_effort = sorted(range(len(jobs)), key=lambda at: jobs[at].choice.effort)
    away = _long(jobs, by_effort, rounds) if processes > 1 else []
    if len(away) < 2:
        away = []
    with _computing([(at, jobs[at].choice) for at in away], row_of, processes) as outcomes:
        for at in by_effort:
            if at not in away:
                tell(jobs[at].choice.name)
                take(at, _outcome(row_of, jobs[at].choice))
        for at, outcome in outcomes:
            tell(jobs[at].choice.name)
            take(at, outcome)
    if not rows and refused:
        raise refused[min(refused)]
    return [rows[at] for at in sorted(rows)]


def _long(jobs: Sequence[Job], by_effort: Sequence[int], rounds: int) -> list[int]:
    """What is worth a process of its own, the most effort first."""
    if rounds < _FEWEST_ROUNDS:
        return []
    least = 1 if rounds > _LONG_SEARCH else 2
    return [at for at in reversed(by_effort) if jobs[at].choice.effort >= least]


_Numbered = tuple[int, MechanismChoice]


@contextmanager
def _computing(
    numbered: Sequence[_Numbered], row_of: RowOf, processes: int
) -> Iterator[Iterator[tuple[int, Row | ValueError]]]:
    """The outcomes as they come, from processes that end with the block."""
    if not numbered:
        yield iter(())
        return
    # New interpreters rather than copies of this one, which may hold locks and threads.
    start = multiprocessing.get_context("spawn")
    with start.Pool(min(processes, len(numbered)), _begin) as pool:
        yield pool.imap_unordered(_Outcome(row_of), numbered)


def _begin() -> None:
    """An interruption is for the process that waits for this one, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class _Outcome:
    row_of: RowOf

    def __call__(self, numbered: _Numbered) -> tuple[int, Row | ValueError]:
        at, choice = numbered
        return at, _outcome(self.row_of, choice)


@single_threaded
def _outcome(row_of: RowOf, choice: MechanismChoice) -> Row | ValueError:
    """The row, or why there is none."""
    try:
        return row_of(choice)
    except ValueError as refusal:
        return refusal
