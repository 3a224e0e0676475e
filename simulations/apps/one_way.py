"""One app, one way, in the app's own environment: reads what to do as JSON, prints what became of it as JSON.

    ENVIRONMENT/bin/python simulations/apps/one_way.py TASK.json RESULT.json

`gallery.py` starts it.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
from support.certificates import make_credentials
from support.flower_network import (
    FlowerRun,
    flower_environment,
    flwr_run,
    flwr_run_simulation,
    superlink,
    supernodes,
)

from fedmf import load_model
from fedmf.errors import ConfigError
from fedmf.flower import run_app
from fedmf.records.ledger import Ledger


class Rounds(logging.Handler):
    """When rounds began (plain) or ended (private), by the lines that are logged, less client evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[float] = []
        self.private: list[float] = []
        self.failures = 0
        self._evaluating, self._out = 0.0, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time of a line that marks something."""
        line, now = record.getMessage(), time.perf_counter()
        if failed := re.search(r"^aggregate_\w+: Received \d+ results and (\d+) failures", line):
            self.failures += int(failed[1])
        if line.startswith("configure_evaluate: Sampled"):
            self._evaluating = now
        elif line.startswith("aggregate_evaluate: Received"):
            self._out += now - self._evaluating
        elif line.startswith(("[ROUND ", "Strategy execution finished")):
            self.plain.append(now - self._out)
        elif line.startswith("fedmf: round ") and not line.startswith("fedmf: round 0/"):
            self.private.append(now - self._out)

    def seconds(self) -> float | None:
        """Median of the rounds after the first, in which processes start and programs are compiled."""
        marks = self.private or self.plain[1:]
        lengths = [b - a for a, b in itertools.pairwise(marks)]
        return statistics.median(lengths) if lengths else None


def in_process(task: dict[str, Any]) -> dict[str, Any]:
    """`run_app`."""
    rounds = Rounds()
    logging.getLogger("flwr").addHandler(rounds)
    started = time.perf_counter()
    run_app(
        task["folder"],
        num_supernodes=task["nodes"],
        run_config=task["config"],
        workers=task.get("workers"),
        seed=0,
    )
    if rounds.failures:
        raise AssertionError(f"{rounds.failures} replies were errors of clients")
    return {"seconds": time.perf_counter() - started, "round_seconds": rounds.seconds()}


def refused(task: dict[str, Any]) -> dict[str, Any]:
    """`run_app` of an app that must be refused."""
    try:
        run_app(task["folder"], num_supernodes=task["nodes"], run_config=task["config"], workers=1)
    except ConfigError as error:
        line = str(error)
        if "\n" in line:
            raise AssertionError(f"more than one line: {line!r}") from None
        if run_dirs():
            raise AssertionError(f"refused after {run_dirs()[0]} was made: {line}") from None
        return {"refused": line}
    raise AssertionError("it was not refused")


def on_the_simulation_engine(task: dict[str, Any]) -> dict[str, Any]:
    """`flwr run`."""
    env = flower_environment(Path(task["place"]))
    return of_run(flwr_run_simulation(Path(task["folder"]), env, task["nodes"], task["config"], timeout=1200))


def on_supernodes(task: dict[str, Any]) -> dict[str, Any]:
    """A SuperLink and SuperNodes, authenticated where the app is about that."""
    place, count = Path(task["place"]), task["nodes"]
    if task["prepare"]:
        script, *words = [word.format(nodes=count) for word in task["prepare"]]
        command = [sys.executable, str(Path(task["folder"]) / script), *words]
        subprocess.run(command, cwd=place, check=True, stdout=sys.stderr)
    keys = make_credentials(place / "credentials", count) if task["authenticated"] else None
    configs = [task["node_config"].format(place=place, number=i + 1) for i in range(count)]
    env = flower_environment(place)
    with (
        superlink(env, place / "net", credentials=keys) as link,
        supernodes(env, link, count, keys, configs),
    ):
        return of_run(flwr_run(Path(task["folder"]), env, link.name, task["config"], timeout=1200))


def of_run(run: FlowerRun) -> dict[str, Any]:
    if not run.ok:
        raise AssertionError(f"{run.status} {run.details} {run.output[-1500:]}")
    return {"seconds": run.seconds}


def run_dirs() -> list[Path]:
    """Of private runs; the home folder is this task's own."""
    runs = Path.home() / ".fedmf" / "runs"
    return sorted(runs.iterdir()) if runs.exists() else []


def judged(task: dict[str, Any]) -> dict[str, Any]:
    """What the records of a private run say: every round released, nobody's reply refused; and its model."""
    (place,) = run_dirs()
    failures = (place / "failures.jsonl").read_text()
    if failures:
        raise AssertionError(f"a client failed: {failures[:1000]}")
    with Ledger.open(place / "ledger.sqlite", read_only=True) as ledger:
        last = ledger.last_round()
    released = 0 if last is None else last + 1
    if released != task["rounds"]:
        raise AssertionError(f"{released} rounds were released, not {task['rounds']}")
    statement = json.loads((place / "statement.json").read_text())
    sys.path.insert(0, task["folder"])
    arrays = load_model(place)
    names = {"arrays": arrays, "ndarrays": [np.asarray(value) for value in arrays.values()]}
    exec(task["loads"], names)
    return {"epsilon": statement["epsilon_realised"], "model_loads": True, "arrays": len(arrays)}


WAYS = {
    "run_app": in_process,
    "flwr run": on_the_simulation_engine,
    "supernodes": on_supernodes,
    "refused": refused,
}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    try:
        result = WAYS[task["way"]](task)
        if task["private"] and task["way"] != "refused":
            result |= judged(task)
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:2000]}
    Path(sys.argv[2]).write_text(json.dumps(result))
    os._exit(0)  # threads of other libraries may not end by themselves


if __name__ == "__main__":
    main()
