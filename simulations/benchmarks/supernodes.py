"""Rounds a minute of three SuperNodes with twelve users each: one message a node against one a user.

    python simulations/benchmarks/supernodes.py [--nodes 3] [--users 12] [--rounds 8] [--rounds-single 3]
        [--json]

A real `flower-superlink` and real `flower-supernode`s on loopback run the app of this repository on digits
(MLP with 32 hidden units, 2,410 parameters); every user is asked in every round. First with all users of a
node in one message (`execution.users-per-message` unset), then with one user a message. A SuperNode starts
a process for each message. The time of a round is that between the commits of two rounds, so the first
round is not counted. Run it on an otherwise idle machine; it takes seven minutes on four cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))
sys.path.insert(0, str(PROJECT / "tests"))

from support.flower_network import (  # noqa: E402
    SuperLink,
    flower_environment,
    flwr_run,
    superlink,
    supernodes,
)

from fedmf.records.ledger import Ledger  # noqa: E402

#: `execution.users-per-message` of the two.
FORMS = {"one message a node": None, "one message a user": 1}


def app_folder(place: Path) -> Path:
    """The files of the repository that make the Flower app."""
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(PROJECT / name, place / name)
    shutil.copytree(PROJECT / "fedmf", place / "fedmf", ignore=shutil.ignore_patterns("__pycache__"))
    return place


class Commits(threading.Thread):
    """When each round of a run was committed, seen from outside.

    Args:
        ledger: of the run; it need not be there yet.
    """

    def __init__(self, ledger: Path) -> None:
        super().__init__(daemon=True)
        self._ledger, self._over = ledger, threading.Event()
        self.times: dict[int, float] = {}

    def run(self) -> None:
        """Look ten times a second."""
        while not self._over.wait(0.1):
            with suppress(OSError, ValueError, RuntimeError, sqlite3.Error):
                with Ledger.open(self._ledger, read_only=True) as ledger:
                    last = ledger.last_round()
                if last is not None and last >= 0:
                    self.times.setdefault(last, time.perf_counter())

    def seconds(self) -> list[float]:
        """Of the rounds after the first."""
        self._over.set()
        self.join()
        return [self.times[t] - self.times[t - 1] for t in sorted(self.times) if t - 1 in self.times]


def measure(
    app: Path, env: dict[str, str], link: SuperLink, place: Path, users: int, rounds: int, most: int | None
) -> list[float]:
    """Seconds of each round after the first of one run."""
    config: dict[str, Any] = {
        "data.kind": "digits", "data.users": users, "model.kind": "mlp", "model.hidden-units": "32",
        "cohorts.kind": "cyclic", "cohorts.rounds": rounds, "cohorts.size": users,
        "mechanism.kind": "bisr", "mechanism.bands": 2, "execution.messages": "per-user",
        "execution.output-dir": str(place), "execution.evaluate-every": 1000,
        "execution.round-timeout": 3000.0,
    }  # fmt: skip
    if most is not None:
        config["execution.users-per-message"] = most
    commits = Commits(place / "ledger.sqlite")
    commits.start()
    done = flwr_run(app, env, link.name, config, timeout=3000)
    seconds = commits.seconds()
    if not done.ok or len(seconds) != rounds - 1:
        raise RuntimeError(f"run ended {done.status}: {done.details}\n{done.output[-3000:]}")
    if text := (place / "failures.jsonl").read_text():
        raise RuntimeError(f"users failed: {text[:1000]}")
    with Ledger.open(place / "ledger.sqlite", read_only=True) as ledger:
        present = len(list(ledger.participations()))
    if present != rounds * users:
        raise RuntimeError(f"users must be present in all rounds; got {present} of {rounds * users}")
    return seconds


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--users", type=int, default=12, help="of each node")
    parser.add_argument("--rounds", type=int, default=8, help="with one message a node")
    parser.add_argument("--rounds-single", type=int, default=3, help="with one message a user")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "app").mkdir()
        app, env = app_folder(place / "app"), flower_environment(place)
        with superlink(env, place / "net") as link, supernodes(env, link, given.nodes):
            for (name, most), rounds in zip(FORMS.items(), (given.rounds, given.rounds_single), strict=True):
                run = place / name.replace(" ", "-")
                seconds = measure(app, env, link, run, given.nodes * given.users, rounds, most)
                rows.append(
                    {
                        "name": name,
                        "value": statistics.median(seconds),
                        "unit": "s a round",
                        "rounds_per_minute": 60 / statistics.median(seconds),
                        "rounds": len(seconds),
                        "load": os.getloadavg()[0],
                    }
                )
                if not given.json:
                    print(
                        f"{name}: median round {rows[-1]['value']:.1f} s of {len(seconds)}, "
                        f"{rows[-1]['rounds_per_minute']:.2f} rounds a minute (load {rows[-1]['load']:.1f})",
                        flush=True,
                    )
    for row in rows:
        row |= {"baseline": rows[-1]["value"], "ratio": rows[-1]["value"] / row["value"]}
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"ratio of round times: {rows[0]['ratio']:.1f}")


if __name__ == "__main__":
    main()
