"""A run and a stream meet allocations that fail: nothing is lost, wrong or shown twice.

In a forked process the interpreter's i-th allocation fails, or 40 from there on, for numbers i spread evenly
in scale over the whole job. Libraries in other languages may end the process where they get no memory. Then
the job is gone on with undisturbed. What was shown before must be there, and the end must be that of an
undisturbed job, to the bit.

    python simulations/reliability/memory_faults.py [--tries 100]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from jobs import DOCUMENTED, Job, releases_shown
from trials import Disturbed, chosen_jobs, emptied, table, tried

try:
    from _testcapi import set_nomemory  # pyright: ignore[reportMissingImports]
except ImportError:  # some distributions leave it out
    set_nomemory = None

#: How many allocations in a row fail, by what a row of the table is called.
FAULTS = {"one allocation fails": 1, "40 in a row fail": 40}
#: Seconds after which a job that takes two or three is taken to wait for ever.
_LONGEST = 60


def reached(job: Job, place: Path) -> int:
    """A number of an allocation after which failing ones no longer meet the job."""
    number, unmet = 1000, 0
    while unmet < 2:  # one may have been survived
        emptied(place)
        how, _ = disturbed(job, place, number, number + 40)
        unmet = unmet + 1 if how == "went on" else 0
        number = number * 5 // 4
    return number


def disturbed(job: Job, place: Path, first: int, end: int) -> Disturbed:
    """How a job ends whose allocations from ``first`` to ``end`` fail, and how many releases were shown."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:  # nothing of this process's own may run in the copy, whatever fails there
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a failing interpreter says
            status = _child(job, place, writing, first, end)
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ends = {0: "went on", 3: "one line", -signal.SIGALRM: "ENDED NEVER"}
    return ends.get(status, "died"), releases_shown(said)


def _child(job: Job, place: Path, say: int, first: int, end: int) -> int:
    assert set_nomemory is not None
    signal.alarm(_LONGEST)
    try:
        set_nomemory(first, end)
        job.go(place, say)
    except (*DOCUMENTED, MemoryError, RuntimeError):  # the command line shows each in one line
        return 3
    except BaseException:
        return 1
    return 0


def outcomes(job: Job, in_row: int, place: Path, tries: int, seed: int = 1) -> Counter[str]:
    """What becomes of a job for so many places at which allocations begin to fail."""
    end, chosen = reached(job, place), random.Random(seed)
    # As many tries between 10^4 and 10^5 as up to 10^6.
    places = [int(end ** chosen.uniform(0.4, 1)) for _ in range(tries)]
    begun = (partial(disturbed, job, place, first, first + in_row) for first in places)
    return tried(job, place, begun, f"{job.name}, {in_row} in a row", tries)


def main() -> None:
    """Print a row for each job and fault; exit status 1 if something was lost or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=100, help="of each fault on each job")
    parser.add_argument("--only", default="", help="jobs whose name begins so")
    arguments = parser.parse_args()
    if set_nomemory is None:
        raise SystemExit("allocations are made to fail by _testcapi, which this interpreter does not have.")
    table(
        chosen_jobs(arguments.only),
        FAULTS,
        lambda job, name, place: outcomes(job, FAULTS[name], place, arguments.tries),
    )


if __name__ == "__main__":
    main()
