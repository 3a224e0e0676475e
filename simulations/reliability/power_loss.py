"""Every disk that a power loss may leave, for a run and a stream: each resumes with the same result.

A run and a stream are executed once while each of their system calls is logged. From the log follow the
disks that POSIX allows at each moment (`disk_images`). Each is written to a directory and gone on with: what
was shown before must be there, and the end must be that of an undisturbed run, to the bit; or the directory
is refused in one line. Seeds are public, so that bits can be compared.

    python simulations/reliability/power_loss.py [--subsets 12] [--every 1]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from disk_images import images
from jobs import DOCUMENTED, Job, releases_shown
from system_calls import SUPPORTED, Call, traced
from tqdm import tqdm
from trials import chosen_jobs, emptied, undisturbed


def logged(job: Job, root: Path) -> list[Call]:
    """The calls of a whole job in an empty directory."""
    calls: list[Call] = []
    reading, writing = os.pipe()
    try:
        status = traced(lambda: job.go(root, writing), root, calls.append)
    finally:
        os.close(reading)
        os.close(writing)
    if status:
        raise RuntimeError(f"{job.name} ended with status {status}.")
    return calls


def judge(job: Job, place: Path, shown: int, expected: object) -> str:
    """What became of one disk: "resumed", "refused", or what is wrong."""
    try:
        if job.released(place) < shown:
            return "LOST"
        return "resumed" if undisturbed(job, place) == expected else "ANOTHER RESULT"
    except DOCUMENTED as error:
        return "refused" if "\n" not in str(error) else "TRACEBACK"
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {error}"


def shown_after(log: list[Call], made: int) -> int:
    """How many releases others may have seen after so many calls."""
    return releases_shown(b"".join(call.content for call in log[:made] if call.name == "say"))


def outcomes(job: Job, folder: Path, subsets: int, every: int, seed: int = 1) -> tuple[int, Counter[str]]:
    """How many calls a job makes, and what becomes of every ``every``-th of its disks."""
    place = folder / "disk"  # always the same, since a stream knows where its output was
    emptied(place)
    expected = undisturbed(job, place)
    emptied(place)
    log = logged(job, place)
    emptied(place)
    found: Counter[str] = Counter()
    chosen = random.Random(seed)
    for made, image in tqdm(images(place, log, subsets, seed), desc=job.name, disable=None, unit=" disks"):
        if chosen.random() * every >= 1:
            continue
        shutil.rmtree(place)
        image.write(place)
        found[judge(job, place, shown_after(log, made), expected)] += 1
    return sum(call.name != "say" for call in log), found


def main() -> None:
    """Print a row for each job; exit status 1 if a disk was not gone on with as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--subsets", type=int, default=12, help="random subsets of uncertain changes at each moment"
    )
    parser.add_argument("--every", type=float, default=1, help="try one disk in so many")
    parser.add_argument("--only", default="", help="jobs whose name begins so")
    arguments = parser.parse_args()
    if not SUPPORTED:
        raise SystemExit("power losses are replayed on Linux on x86-64 only.")
    bad = 0
    print(f"{'job':26} {'calls':>6} {'disks':>6} {'resumed':>8} {'refused':>8} {'wrong':>6}")
    for job in chosen_jobs(arguments.only):
        with tempfile.TemporaryDirectory() as folder:
            calls, found = outcomes(job, Path(folder), arguments.subsets, arguments.every)
        wrong = {what: count for what, count in found.items() if what not in ("resumed", "refused")}
        bad += sum(wrong.values())
        print(
            f"{job.name:26} {calls:6} {found.total():6} {found['resumed']:8} {found['refused']:8} "
            f"{sum(wrong.values()):6}"
        )
        for what, count in wrong.items():
            print(f"    {count} x {what}")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
