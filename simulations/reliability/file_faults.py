"""A run and a stream die, or their disk fails, before each call that changes a file.

Before the i-th such call, for every i (or every so many): the process is killed; the call alone fails, or it
and all after it fail, with no space, an input/output error, a read-only file system or no free descriptors.
Then the job is gone on with undisturbed. What was shown before must be there, and the end must be that of an
undisturbed job, to the bit.

With `--reader`, jobs with secret keys that try again in the living process, with another sum each time
(`retries.py`), while somebody looks at the directory before every such call: no row of noise may be found
around two sums, nor two releases of one round.

    python simulations/reliability/file_faults.py [--every 1] [--reader]
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jobs import DOCUMENTED, Job, releases_shown
from retries import RETRIES, Reader, Retrying
from system_calls import SUPPORTED, Call, traced
from tqdm import tqdm
from trials import Disturbed, chosen_jobs, emptied, table, tried, unheard

_REFUSED, _UNEXPECTED = 3, 4


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a call, or from a call on.

    Args:
        name: shown.
        error: of the operating system; 0 kills the process.
        lasting: whether all later calls that it meets fail too.
        calls: which calls it meets.
    """

    name: str
    error: int
    lasting: bool
    calls: frozenset[str]

    def meets(self, call: Call) -> bool:
        """Whether this can go wrong with the call."""
        return call.name in self.calls

    def from_call(self, first: int) -> Callable[[Call], int | None]:
        """What `traced` asks for: the fault begins at the call number ``first`` of those it meets."""
        seen = 0

        def decide(call: Call) -> int | None:
            nonlocal seen
            if not self.meets(call):
                return None
            seen += 1
            return self.error if seen == first + 1 or (self.lasting and seen > first) else None

        return decide


_GROWS = frozenset(("create", "write", "mkdir", "rename"))
_CHANGES = _GROWS | {"open-truncated", "truncate", "unlink", "rmdir"}
FAULTS = (
    Fault("killed", 0, False, _CHANGES | {"sync"}),
    Fault("no space, once", errno.ENOSPC, False, _GROWS),
    Fault("no space from then on", errno.ENOSPC, True, _GROWS),
    Fault("input/output error, once", errno.EIO, False, _CHANGES | {"sync"}),
    Fault("input/output errors from then on", errno.EIO, True, _CHANGES | {"sync"}),
    Fault("read-only from then on", errno.EROFS, True, _CHANGES),
    Fault("no descriptors, once", errno.EMFILE, False, frozenset(("create",))),
)
#: With a reader beside: what ends a commit.
READER_FAULTS = {
    fault.name: fault
    for fault in (
        *(fault for fault in FAULTS if fault.error in (0, errno.ENOSPC, errno.EIO)),
        Fault("input/output error in a sync, once", errno.EIO, False, frozenset(("sync",))),
    )
}
#: What `traced` asks about a call.
Decide = Callable[[Call], int | None]


def disturbed(job: Job, place: Path, decide: Decide) -> Disturbed:
    """How a job under faults ends, and how many releases others may have seen."""
    how, said = _traced_job(job, place, decide)
    return how, releases_shown(said)


def _traced_job(job: Job | Retrying, place: Path, decide: Decide) -> tuple[str, bytes]:
    """Do what is left of a job under faults: how it ends, and what it tells."""
    said = b""

    def watching(call: Call) -> int | None:
        nonlocal said
        if call.name == "say":
            said += call.content
        return decide(call)

    reading, writing = os.pipe()
    try:
        status = traced(lambda: _in_one_line(job, place, writing), place, watching)
    finally:
        os.close(reading)
        os.close(writing)
    names = {0: "went on", _REFUSED: "one line", -signal.SIGKILL: "died"}
    return names.get(status, f"ENDED {status}"), said


def _in_one_line(job: Job | Retrying, place: Path, say: int) -> None:
    try:
        job.go(place, say)
    except DOCUMENTED as error:
        sys.exit(_UNEXPECTED if "\n" in str(error) else _REFUSED)


def outcomes(job: Job, fault: Fault, place: Path, every: int) -> Counter[str]:
    """What becomes of a job for every ``every``-th call at which a fault begins."""
    emptied(place)
    met: list[Call] = []
    disturbed(job, place, lambda call: met.append(call) if fault.meets(call) else None)
    places = range(0, len(met), every)
    begun = (partial(disturbed, job, place, fault.from_call(first)) for first in places)
    return tried(job, place, begun, f"{job.name}, {fault.name}", len(places))


def looked_at(job: Retrying, fault: Fault, place: Path, every: int) -> Counter[str]:
    """How often a release was two, for every ``every``-th call at which a fault begins."""
    calls = 0

    def counting(call: Call) -> None:
        nonlocal calls
        calls += fault.meets(call)

    emptied(place)
    unheard(job, place)  # here: processes forked later find what it loads
    emptied(place)
    _watched(job, place, Reader(job, place), counting)
    found: Counter[str] = Counter()
    places = range(0, calls, every)
    for first in tqdm(places, desc=f"{job.name}, {fault.name}", disable=None):
        emptied(place)
        reader, decide = Reader(job, place), fault.from_call(first)
        begun = False

        def beside(call: Call, reader: Reader = reader, decide: Decide = decide) -> int | None:
            nonlocal begun
            error = decide(call)
            begun = begun or error is not None
            if begun:
                reader.look()
            return error

        found[_watched(job, place, reader, beside)] += 1
        reader.look()
        if (how := _watched(job, place, reader, lambda _: None)) != "went on":
            found[f"NOT CONTINUED: {how}"] += 1
        reader.look()
        found.update(reader.verdict())
    return found


def _watched(job: Retrying, place: Path, reader: Reader, decide: Decide) -> str:
    """Do what is left of a job; the reader hears what it tells."""
    how, said = _traced_job(job, place, decide)
    reader.hear(said)
    return how


def read_beside(only: str, faults: Sequence[str], every: int) -> None:
    """Print a row for each retrying job and fault; exit status 1 if a release was two."""
    torch.set_num_threads(1)
    table(
        [job for job in RETRIES if job.name.startswith(only)],
        [fault for fault in READER_FAULTS if not faults or fault in faults],
        lambda job, name, place: looked_at(job, READER_FAULTS[name], place, every),
    )


def main() -> None:
    """Print a row for each job and fault; exit status 1 if something was lost, wrong or a traceback."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="begin a fault at one call in so many")
    parser.add_argument("--only", default="", help="jobs whose name begins so")
    parser.add_argument("--reader", action="store_true", help="with retries, and a reader beside")
    parser.add_argument("--fault", nargs="+", default=[], metavar="NAME", help="these faults alone")
    arguments = parser.parse_args()
    if not SUPPORTED:
        raise SystemExit("faults are injected on Linux on x86-64 only.")
    if arguments.reader:
        read_beside(arguments.only, arguments.fault, arguments.every)
    known = {fault.name: fault for fault in FAULTS if not arguments.fault or fault.name in arguments.fault}
    table(
        chosen_jobs(arguments.only),
        known,
        lambda job, name, place: outcomes(job, known[name], place, arguments.every),
    )


if __name__ == "__main__":
    main()
