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
    return sum(int(line.split()[-5]) for line in re.findall(r"^(?:run|stream).*$", output, re.MULTILINE))


def test_power_losses():
    status, output = script("power_loss", "", "--subsets", "4", "--every", "60")
    assert status == 0, output
    disks = [int(line.split()[-4]) for line in re.findall(r"^(?:run|stream).*$", output, re.MULTILINE)]
    refused = [int(line.split()[-2]) for line in re.findall(r"^(?:run|stream).*$", output, re.MULTILINE)]
    assert len(disks) == 3
    assert min(disks) >= 3
    assert not any(refused)  # nothing that was committed needs to be given up


@pytest.mark.parametrize("what", PLANTED)
def test_power_losses_find_what_is_not_flushed(what):
    status, output = script(
        "power_loss", PLANTED[what], "--subsets", "4", "--every", "60", "--only", "run, checkpoint every 1"
    )
    refused = sum(int(line.split()[-2]) for line in re.findall(r"^(?:run|stream).*$", output, re.MULTILINE))
    assert status == 1 or refused, output


def test_failing_disks():
    status, output = script("file_faults", "", "--every", "251")
    assert status == 0, output
    assert tries(output) >= 8
