"""A run and a stream in a process that gets signals, no descriptors, a stepping clock or a second process.

Each job is forked and disturbed: a signal at a random moment; after a release so few free descriptors that
files cannot be opened any more; a clock that leaps a day forth and back (monotonic clocks do not); another
process that goes on with the same directory at the same time. Then the job is gone on with undisturbed. What
was shown before must be there, and the end must be that of an undisturbed job, to the bit.

    python simulations/reliability/process_faults.py [--tries 20]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobs import DOCUMENTED, Job, releases_shown
from trials import Disturbed, chosen_jobs, emptied, table, tried

_REFUSED = 3
_DAY = 86400.0


@dataclass
class Working:
    """A job under way in another process.

    Args:
        pid: of the process.
        pipe: what the job tells.
    """

    pid: int
    pipe: int
    said: bytes = b""
    status: int = field(default=0, init=False)

    def until_stopped(self) -> None:
        """Wait until it stopped itself."""
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                raise RuntimeError("the job ended before its first release.")
            time.sleep(0.001)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> None:
        """Wait for its end."""
        while more := os.read(self.pipe, 2**16):
            self.said += more
        os.close(self.pipe)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def how(self) -> str:
        """How it ended."""
        names = {0: "went on", _REFUSED: "one line"}
        return "died" if self.status < 0 else names.get(self.status, f"ENDED {self.status}")


@contextmanager
def working(job: Job, place: Path, prepare: Callable[[], object] = lambda: None) -> Iterator[Working]:
    """The job in a forked process, prepared there first."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            prepare()
            status = _in_one_line(job, place, writing)
        finally:
            os._exit(status)
    os.close(writing)
    other = Working(pid, reading)
    try:
        yield other
    finally:
        other.send(signal.SIGCONT)
        other.wait()


def _in_one_line(job: Job, place: Path, say: int) -> int:
    try:
        job.go(place, say)
    except (KeyboardInterrupt, *DOCUMENTED) as error:
        return 1 if "\n" in str(error) else _REFUSED
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


#: Disturbs a job and says how it ended and what it told.
Fault = Callable[[Job, Path, random.Random], Working]


def signalled(number: signal.Signals) -> Fault:
    """A signal at a moment of the job's usual time."""
    usual: dict[str, float] = {}

    def disturb(job: Job, place: Path, chosen: random.Random) -> Working:
        if job.name not in usual:
            begun = time.monotonic()
            with working(job, place):
                pass
            usual[job.name] = time.monotonic() - begun
            emptied(place)
        with working(job, place) as other:
            time.sleep(chosen.random() * usual[job.name])
            other.send(number)
        return other

    return disturb


def _stop_after_the_first_release() -> None:
    """By itself: whoever looks from outside, on a slow machine, might find the job at its end."""
    write = os.write

    def stopping(descriptor: int, said: Any) -> int:
        written = write(descriptor, said)
        if releases_shown(said):
            os.write = write
            os.kill(os.getpid(), signal.SIGSTOP)
        return written

    os.write = stopping


def starved(free: int) -> Fault:
    """So many free descriptors after the first release."""

    def disturb(job: Job, place: Path, _: random.Random) -> Working:
        with working(job, place, _stop_after_the_first_release) as other:
            other.until_stopped()
            opened = {int(name) for name in os.listdir(f"/proc/{other.pid}/fd")}
            limit = next(n for n in itertools.count() if n - sum(fd < n for fd in opened) == free)
            hard = resource.prlimit(other.pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(other.pid, resource.RLIMIT_NOFILE, (limit, hard))
        return other

    return disturb


def leaping_clock(job: Job, place: Path, chosen: random.Random) -> Working:
    """Every look at the wall clock may find it a day before or after."""

    def prepare() -> None:
        seconds, nanoseconds = time.time, time.time_ns
        leap = random.Random(chosen.random())
        time.time = lambda: seconds() + leap.choice((-_DAY, 0.0, _DAY))
        time.time_ns = lambda: nanoseconds() + leap.choice((-1, 0, 1)) * int(_DAY * 1e9)
        flower_messages: Any = importlib.import_module("flwr.app.message.message")
        now = flower_messages.now
        flower_messages.now = lambda: now() + timedelta(days=leap.choice((-1, 0, 1)))

    with working(job, place, prepare) as other:
        pass
    return other


def joined(job: Job, place: Path, _: random.Random) -> Working:
    """Another process goes on with the directory while this one is at work: it is refused in one line."""
    with working(job, place, _stop_after_the_first_release) as first:
        first.until_stopped()
        with working(job, place) as second:
            pass
    if second.how != "one line":
        first.status = 100  # a status that nobody expects
    return first


FAULTS: dict[str, Fault] = {
    "SIGTERM at a random moment": signalled(signal.SIGTERM),
    "SIGINT at a random moment": signalled(signal.SIGINT),
    "SIGHUP at a random moment": signalled(signal.SIGHUP),
    "SIGKILL at a random moment": signalled(signal.SIGKILL),
    **{f"{free} free descriptors left": starved(free) for free in range(4)},
    "clock leaps a day forth and back": leaping_clock,
    "a second process at the same time": joined,
}
#: Faults that nothing may come of, or of which one outcome only is right.
RIGHT = {
    "clock leaps a day forth and back": {"went on"},
    "a second process at the same time": {"went on"},
    "SIGKILL at a random moment": {"died", "went on"},
}


def outcomes(job: Job, name: str, place: Path, tries: int, seed: int = 1) -> Counter[str]:
    """What becomes of a job that is disturbed so often."""
    chosen = random.Random(f"{seed} {name}")

    def disturbed() -> Disturbed:
        other = FAULTS[name](job, place, chosen)
        right = other.how in RIGHT.get(name, {other.how})
        return other.how if right else f"ENDED WRONGLY: {other.how}", releases_shown(other.said)

    return tried(job, place, itertools.repeat(disturbed, tries), f"{job.name}, {name}", tries)


def main() -> None:
    """Print a row for each job and fault; exit status 1 if something was lost, wrong or a traceback."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20, help="of each fault on each job")
    parser.add_argument("--only", default="", help="jobs whose name begins so")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME")
    arguments = parser.parse_args()
    table(
        chosen_jobs(arguments.only),
        arguments.fault,
        lambda job, name, place: outcomes(job, name, place, arguments.tries),
    )


if __name__ == "__main__":
    main()
