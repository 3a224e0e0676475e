"""Wheel and source in environments that have nothing else: each Python, newest and oldest dependencies."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from fedmf.addresses import linked
from tests.support.release.distribution import UV, outside, wheel_contents

#: Of README's line for an installation.
EXTRAS = ("data", "report")
#: What somebody does first with an installed fedmf; the folder it runs in is empty.
FIRST_STEP = """
import fedmf
print(fedmf.__file__)
print(fedmf.design(fedmf.Participation(64, 4, 16), ["cgd"], epsilon=8.0, delta=1e-5)[0]["sensitivity_kind"])
"""
SECOND_STEP = """
import tempfile
import fedmf
run = fedmf.Run(
    task=fedmf.Classification(fedmf.Digits(users=20), fedmf.Mlp(hidden_units=(8,))),
    cohorts=fedmf.CyclicCohorts(rounds=4, size=10),
    privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3),
)
print(fedmf.simulate(run, tempfile.mkdtemp() + "/run").statement.render_text().splitlines()[0])
"""


@dataclass(frozen=True)
class Trial:
    """How one environment went.

    Attributes:
        python: its version.
        what: what was installed, and with which dependencies.
        installing: seconds.
        using: seconds.
        megabytes: of all files of the environment.
        steps: that were done.
        failure: what went wrong; empty where all steps were done.
    """

    python: str
    what: str
    installing: float
    using: float
    megabytes: float
    steps: int
    failure: str


def trials(pythons: list[str], wheel: Path, source: Path) -> int:
    """Try all, one after another, and print a table; 1 if one failed.

    Versions of dependencies without a wheel for a Python are none for it.
    """
    needs = list(requirements(wheel))
    extras = ",".join(EXTRAS)
    newest, built = f"fedmf[{extras}] @ {wheel.as_uri()}", f"fedmf[{extras}] @ {source.as_uri()}"
    oldest = ["--resolution", "lowest-direct", "--only-binary", ":all:", *needs, f"fedmf @ {wheel.as_uri()}"]
    kinds = {"wheel, newest": [newest], "wheel, oldest": oldest}
    steps = list(first_steps(wheel))
    done = [_tried(python, what, given, steps) for what, given in kinds.items() for python in pythons]
    done.append(_tried(pythons[-1], "source, newest", [built], steps))
    table = Table("Python", "dependencies", "install s", "use s", "MB", f"steps of {len(steps)}", "failure")
    for trial in done:
        figures = (
            f"{trial.installing:.0f}",
            f"{trial.using:.0f}",
            f"{trial.megabytes:,.0f}",
            str(trial.steps),
        )
        table.add_row(trial.python, trial.what, *figures, trial.failure)
    Console(width=160).print(table)
    return int(any(trial.failure for trial in done))


def requirements(wheel: Path) -> Iterator[str]:
    """Direct dependencies, as the metadata of a wheel say them, with those of the extras."""
    for line in wheel_contents(wheel)[1].get_all("Requires-Dist", []):
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in EXTRAS):
            need.marker = None
            yield str(need)


def first_steps(wheel: Path) -> Iterator[list[str]]:
    """First uses, and the commands of the description that the wheel itself has, simulations cut short."""
    yield ["python", "-c", FIRST_STEP]
    yield ["python", "-c", SECOND_STEP]
    yield ["fedmf", "--version"]
    for command in re.findall(r"^\$ (.*)$", str(wheel_contents(wheel)[1].get_payload()), re.MULTILINE):
        words = shlex.split(command)
        yield [*words, "--set", "cohorts.rounds=20"] if words[:2] == ["fedmf", "simulate"] else words
    yield ["fedmf", "--help"]


def _tried(python: str, what: str, given: list[str], steps: list[list[str]]) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        environment, count, failure = Path(folder, "env"), 0, ""
        begun = time.monotonic()
        failure = _failure([UV, "venv", "--quiet", "--python", python, str(environment)], folder)
        install = [UV, "pip", "install", "--quiet", "--python", str(environment), *given]
        failure = failure or _failure(install, folder)
        installed = time.monotonic()
        for program, *arguments in steps if not failure else []:
            failure = _failure([str(environment / "bin" / program), *arguments], folder)
            if failure:
                break
            count += 1
        used = time.monotonic()
        version = _version(environment) or python
        size = sum(path.lstat().st_size for path in environment.rglob("*") if not path.is_dir())
        seconds = (installed - begun, used - installed)
        trial = Trial(version, what, *seconds, size / 1e6, count, failure)
        figures = f"{seconds[0]:.0f} s, {seconds[1]:.0f} s, {size / 1e6:,.0f} MB"
        print(f"Python {version}, {what}: {figures}: {failure or 'works'}", flush=True)
        return trial


def _version(environment: Path) -> str:
    """Of the Python in it; empty if there is no environment."""
    said = environment / "pyvenv.cfg"
    found = re.search(r"^version_info = (\S+)$", said.read_text(), re.MULTILINE) if said.exists() else None
    return found[1] if found else ""


def _failure(command: list[str], folder: str) -> str:
    """What a command in a folder ended with; empty if it succeeded and, of help, says where pages are."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=outside(), capture_output=True, text=True, timeout=1800
        )
    except subprocess.TimeoutExpired:
        return f"{command[:3]} takes more than half an hour"
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        return f"{Path(command[0]).name} {' '.join(command[1:3])[:60]}: {' '.join(last)}"
    if command[1:] == ["--help"] and linked("docs/start.md") not in " ".join(done.stdout.split()):
        return "help does not say where pages are"
    return ""
