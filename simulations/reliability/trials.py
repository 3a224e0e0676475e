"""Disturb a job many times, go on with it undisturbed each time, and tell what became of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import torch
from jobs import Job, caches, stream, training, with_parts
from tqdm import tqdm

__all__ = ["Disturbed", "chosen_jobs", "emptied", "table", "tried", "undisturbed", "unheard"]


class Named(Protocol):
    """What is disturbed."""

    @property
    def name(self) -> str:
        """Shown."""
        ...


class Goes(Protocol):
    """What does something in a directory and tells a descriptor."""

    @property
    def go(self) -> Callable[[Path, int], object]:
        """All that is left to be done."""
        ...


Disturbable = TypeVar("Disturbable", bound=Named)
#: How a disturbed job ended, and how many of its releases others may have seen.
Disturbed = tuple[str, int]
#: Ends that are as they should be.
_GOOD = ("died", "one line", "went on")


def chosen_jobs(beginning: str) -> list[Job]:
    """The jobs whose name begins so, on one thread, as forked processes need."""
    torch.set_num_threads(1)
    jobs = training(1), training(2), with_parts(), stream(), caches()
    return [job for job in jobs if job.name.startswith(beginning)]


def emptied(place: Path) -> None:
    """An empty directory in its place."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()


def undisturbed(job: Job, place: Path) -> object:
    """What is left of all that a job still has to do there; nobody hears it."""
    unheard(job, place)
    return job.result(place)


def unheard(job: Goes, place: Path) -> None:
    """Do what is left of a job in this process; nobody hears it."""
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        job.go(place, silent)
    finally:
        os.close(silent)


def tried(
    job: Job, place: Path, disturbances: Iterable[Callable[[], Disturbed]], what: str, total: int
) -> Counter[str]:
    """How often a job ended how, and what was wrong with it after it was gone on with.

    Args:
        job: to be disturbed, each time in an empty place.
        place: where.
        disturbances: each does the job with something going wrong.
        what: for the progress bar.
        total: how many disturbances there are.
    """
    emptied(place)
    expected = undisturbed(job, place)
    found: Counter[str] = Counter()
    for disturbance in tqdm(disturbances, desc=what, total=total, disable=None):
        emptied(place)
        how, shown = disturbance()
        found[how] += 1
        try:
            if job.released(place) < shown:
                found["LOST"] += 1
            if undisturbed(job, place) != expected:
                found["ANOTHER RESULT"] += 1
        except Exception as error:
            found[f"NOT CONTINUED {type(error).__name__}: {error}"] += 1
    return found


def table(
    jobs: Iterable[Disturbable],
    faults: Iterable[str],
    outcomes: Callable[[Disturbable, str, Path], Counter[str]],
) -> NoReturn:
    """Print a row for each job and fault and leave with status 1 if anything was wrong."""
    bad = 0
    print(f"{'job':26} {'fault':34} {'tries':>5} {'died':>5} {'one line':>8} {'went on':>8} {'wrong':>6}")
    for job, fault, found in _found(jobs, list(faults), outcomes):
        died, one_line, went_on = (found.pop(how, 0) for how in _GOOD)
        wrong = found.total()
        unexpected = sum(count for how, count in found.items() if how.startswith("ENDED"))
        tries = died + one_line + went_on + unexpected
        print(f"{job.name:26} {fault:34} {tries:5} {died:5} {one_line:8} {went_on:8} {wrong:6}", flush=True)
        for what, count in found.items():
            print(f"    {count} x {what}")
        bad += wrong
    raise SystemExit(bool(bad))


def _found(
    jobs: Iterable[Disturbable],
    faults: list[str],
    outcomes: Callable[[Disturbable, str, Path], Counter[str]],
) -> Iterator[tuple[Disturbable, str, Counter[str]]]:
    for job in jobs:
        for fault in faults:
            with tempfile.TemporaryDirectory() as folder:
                yield job, fault, outcomes(job, fault, Path(folder) / "place")
