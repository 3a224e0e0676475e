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
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from jobs import DOCUMENTED, Job, releases_shown, stream, training
from tqdm import tqdm

try:
    from _testcapi import set_nomemory  # pyright: ignore[reportMissingImports]
except ImportError:  # some distributions leave it out
    set_nomemory = None

#: How many allocations in a row fail, by what a row of the table is called.
FAULTS = {"one allocation fails": 1, "40 in a row fail": 40}


def reached(job: Job, place: Path) -> int:
    """A number of an allocation after which failing ones no longer meet the job."""
    number, unmet = 1000, 0
    while unmet < 2:  # one may have been survived
        place.mkdir()
        how, _ = disturbed(job, place, number, number + 40)
        shutil.rmtree(place)
        unmet = unmet + 1 if how == "went on" else 0
        number = number * 5 // 4
    return number


def disturbed(job: Job, place: Path, first: int, end: int) -> tuple[str, int]:
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
    return {0: "went on", 3: "one line"}.get(status, "died"), releases_shown(said)


def _child(job: Job, place: Path, say: int, first: int, end: int) -> int:
    assert set_nomemory is not None
    try:
        set_nomemory(first, end)
        job.go(place, say)
    except (*DOCUMENTED, MemoryError, RuntimeError):  # the command line shows each in one line
        return 3
    except BaseException:
        return 1
    return 0


def outcomes(job: Job, in_row: int, folder: Path, tries: int, seed: int = 1) -> Counter[str]:
    """What becomes of a job for so many places at which allocations begin to fail."""
    place, silent = folder / "place", os.open(os.devnull, os.O_WRONLY)
    end = reached(job, place)
    place.mkdir()
    job.go(place, silent)
    expected = job.result(place)
    chosen = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in tqdm(range(tries), desc=f"{job.name}, {in_row} in a row", disable=None):
        shutil.rmtree(place)
        place.mkdir()
        first = int(end ** chosen.uniform(0.4, 1))  # as many tries between 10^4 and 10^5 as up to 10^6
        how, shown = disturbed(job, place, first, first + in_row)
        found[how] += 1
        try:
            if job.released(place) < shown:
                found["LOST"] += 1
            job.go(place, silent)
            if job.result(place) != expected:
                found["ANOTHER RESULT"] += 1
        except Exception as error:
            found[f"NOT CONTINUED {type(error).__name__}: {error}"] += 1
    os.close(silent)
    return found


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
    torch.set_num_threads(1)
    bad = 0
    print(f"{'job':26} {'fault':34} {'tries':>5} {'died':>5} {'one line':>8} {'went on':>8} {'wrong':>6}")
    for job in (job for job in (training(1), training(2), stream()) if job.name.startswith(arguments.only)):
        for fault, in_row in FAULTS.items():
            with tempfile.TemporaryDirectory() as folder:
                found = outcomes(job, in_row, Path(folder), arguments.tries)
            good = [found.pop(how, 0) for how in ("died", "one line", "went on")]
            wrong = found.total()
            print(
                f"{job.name:26} {fault:34} {sum(good):5} {good[0]:5} {good[1]:8} {good[2]:8} {wrong:6}",
                flush=True,
            )
            for what, count in found.items():
                print(f"    {count} x {what}")
            bad += wrong
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
