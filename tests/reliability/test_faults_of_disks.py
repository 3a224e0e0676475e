"""Power losses and failing disks, as `simulations/reliability` makes them: some of each; planted faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
from system_calls import SUPPORTED, traced  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))

TRACING = SUPPORTED and traced(lambda: None, Path("/nowhere")) == 0
ROW = re.compile("^(?:run|stream|caches).*$", re.MULTILINE)
pytestmark = pytest.mark.skipif(not TRACING, reason="needs ptrace on Linux on x86-64")

#: Commits that are not flushed; rows that are not as they move into the database.
PLANTED = {
    "commits": "import fedmf.records.frames as frames; frames._flush = lambda _: None\n",
    "database": (
        "import fedmf.records.sqlite as sqlite; real = sqlite._connected\n"
        "def unflushed(path, read_only):\n"
        "    connection = real(path, read_only); connection.execute('PRAGMA synchronous=OFF')\n"
        "    return connection\n"
        "sqlite._connected = unflushed\n"
    ),
}


def script(name: str, planted: str, *options: str) -> tuple[int, str]:
    """Exit status and output of a script, with a fault planted into fedmf first."""
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); sys.argv = [{name!r}, *{options!r}]\n"
        f"{planted}\nimport {name}; {name}.main()"
    )
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=threads)
    return ended.returncode, ended.stdout + ended.stderr[-2000:]


def tries(output: str) -> int:
    return sum(int(line.split()[-5]) for line in ROW.findall(output))


@pytest.mark.parametrize(("only", "jobs", "every"), [("run", 3, 60), ("stream", 1, 60), ("caches", 1, 6)])
def test_power_losses(only: str, jobs: int, every: int):
    status, output = script("power_loss", "", "--subsets", "4", "--every", str(every), "--only", only)
    assert status == 0, output
    disks = [int(line.split()[-4]) for line in ROW.findall(output)]
    refused = [int(line.split()[-2]) for line in ROW.findall(output)]
    assert len(disks) == jobs
    assert min(disks) >= 3, output
    assert not any(refused)  # nothing that was committed needs to be given up


@pytest.mark.parametrize("what", PLANTED)
def test_power_losses_find_what_is_not_flushed(what):
    status, output = script(
        "power_loss", PLANTED[what], "--subsets", "4", "--every", "60", "--only", "run, checkpoint every 1"
    )
    refused = sum(int(line.split()[-2]) for line in ROW.findall(output))
    assert status == 1 or refused, output


#: As it was: what failed is cut off and may be tried again.
NO_RIGHT = (
    "import contextlib; from fedmf.records.lock import ReleaseRight\n"
    "ReleaseRight.exercise = lambda self, what: contextlib.nullcontext()\n"
    "import os; from fedmf.records.frames import FrameWriter; append = FrameWriter.append\n"
    "def taken_back(self, fields, state=None):\n"
    "    try:\n"
    "        append(self, fields, state)\n"
    "    except BaseException:\n"
    "        os.ftruncate(self._descriptor, self.size)\n"
    "        raise\n"
    "FrameWriter.append = taken_back\n"
)
SYNCS = ("--reader", "--only", "training", "--fault", "input/output error in a sync, once")


@pytest.mark.parametrize("every", [12, 6])
def test_no_row_of_noise_around_two_sums(every: int):
    """Training: a sync fails in turn, a reader looks, another sum is tried in the living process."""
    status, output = script("file_faults", "", *SYNCS, "--every", str(every))
    assert status == 0, output
    assert re.search(r"^training .* [1-9]\d* +0$", output, re.MULTILINE), output


def test_a_row_around_two_sums_is_found():
    status, output = script("file_faults", NO_RIGHT, *SYNCS, "--every", "3")
    assert status == 1, output
    assert "ONE ROW, TWO SUMS" in output


def test_failing_disks():
    status, output = script("file_faults", "", "--every", "251")
    assert status == 0, output
    assert tries(output) >= 8
