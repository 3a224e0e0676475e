"""The rows of a comparison, computed closed forms first, and in several processes where that pays."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from queue import SimpleQueue
from typing import Any, Self

from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.optimise import THREAD_LIMITS, single_threaded

Row = dict[str, Any]
#: The row of a choice; a `ValueError` says that it has none.
RowOf = Callable[[MechanismChoice], Row]

# Starting a process takes half a second, more than all of a shorter table.
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

    waiting = deque(sorted(range(len(jobs)), key=lambda at: jobs[at].choice.effort))
    away = _worth_a_process(jobs, rounds) if processes > 1 else 0
    with _Elsewhere(row_of, min(processes - 1, away)) as elsewhere:
        while waiting or elsewhere.begun:
            # Most effort first, and always one more for each process than it computes.
            while away and waiting and elsewhere.idle:
                elsewhere.begin(at := waiting.pop(), jobs[at].choice)
                away -= 1
            if waiting:
                at = waiting.popleft()
                tell(jobs[at].choice.name)
                take(at, _outcome(row_of, jobs[at].choice))
            for at, outcome in elsewhere.arrived(wait=not waiting):
                tell(jobs[at].choice.name)
                take(at, outcome)
    if not rows and refused:
        raise refused[min(refused)]
    return [rows[at] for at in sorted(rows)]


def _worth_a_process(jobs: Sequence[Job], rounds: int) -> int:
    """How many of the jobs, those of most effort, may be computed elsewhere; 0 where it does not pay."""
    if rounds < _FEWEST_ROUNDS:
        return 0
    least = 1 if rounds > _LONG_SEARCH else 2
    long = sum(job.choice.effort >= least for job in jobs)
    return long if long > 1 else 0


_Numbered = tuple[int, Row | ValueError]


class _Elsewhere:
    """Processes that compute rows, and end with the block."""

    def __init__(self, row_of: RowOf, processes: int) -> None:
        self._row_of, self._processes = row_of, processes
        self._outcomes: SimpleQueue[_Numbered | BaseException] = SimpleQueue()
        self._pool: Pool | None = None
        #: How many rows were begun whose outcome has not been taken.
        self.begun = 0

    def __enter__(self) -> Self:
        if self._processes > 0:
            # New interpreters rather than copies of this one, which may hold locks and threads.
            self._pool = multiprocessing.get_context("spawn").Pool(self._processes, _begin)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    @property
    def idle(self) -> bool:
        """Whether a process computes its last row or none."""
        return self._pool is not None and self.begun < 2 * self._processes

    def begin(self, at: int, choice: MechanismChoice) -> None:
        """Have a row computed."""
        assert self._pool is not None
        self.begun += 1
        done = self._outcomes.put
        self._pool.apply_async(_numbered, (at, self._row_of, choice), callback=done, error_callback=done)

    def arrived(self, wait: bool) -> Iterator[_Numbered]:
        """Outcomes that are there; with nothing else to do, the next one is waited for."""
        while self.begun and (wait or not self._outcomes.empty()):
            outcome = self._outcomes.get()
            self.begun -= 1
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
            wait = False


def _begin() -> None:
    """An interruption is for the process that waits for this one, which ends it; and one thread is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))


def _numbered(at: int, row_of: RowOf, choice: MechanismChoice) -> _Numbered:
    return at, _outcome(row_of, choice)


@single_threaded
def _outcome(row_of: RowOf, choice: MechanismChoice) -> Row | ValueError:
    """The row, or why there is none."""
    try:
        return row_of(choice)
    except ValueError as refusal:
        return refusal
