"""Finished runs on disk, one JSON object a line, and their making in processes of one thread each."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from catalogue import FIGURES
from figures import Cell

import fedmf

__all__ = ["Cells", "errors_of", "measured"]

#: Run directories are thrown away; in memory, where the system has a place for that, nothing waits for disks.
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Cells:
    """Finished runs by cell; a stopped comparison goes on where it ended.

    Args:
        path: of the file; made with the first run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[Cell, Mapping[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[Cell(**entry["cell"])] = entry["value"]

    def make(self, cells: Iterable[Cell], processes: int) -> None:
        """Run what is missing, each run in one thread.

        A run that its accountant refuses, or that fails, is kept with the reason.
        """
        missing = [cell for cell in dict.fromkeys(cells) if cell not in self.found]
        if not missing:
            return
        with ProcessPoolExecutor(processes, initializer=_single_threaded) as pool:
            started = {pool.submit(measured, cell): cell for cell in missing}
            for done, future in enumerate(as_completed(started), start=1):
                cell, value = started[future], future.result()
                self.found[cell] = value
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"cell": dataclasses.asdict(cell), "value": value}) + "\n")
                shown = value.get("refused") or f"accuracy {value['accuracy']:.1f}, {value['seconds']:.0f} s"
                print(
                    f"{done}/{len(missing)} {cell.panel} | {cell.line} | {cell.place} | {shown}", flush=True
                )


def _single_threaded() -> None:
    import torch

    torch.set_num_threads(1)


def measured(cell: Cell) -> dict[str, Any]:
    """Final accuracy (percent) and loss of one run, and its noise; its ledger is replayed on the way."""
    from fedmf.errors import ConfigError
    from fedmf.runs import run_of

    begun = time.perf_counter()
    keys = FIGURES[cell.figure].form(cell.form).configuration(cell)
    rounds = keys["cohorts.rounds"]
    once: dict[str, object] = {"execution.evaluate-every": rounds, "execution.checkpoint-every": rounds}
    try:
        run = run_of({**keys, **once})
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            result = fedmf.simulate(run, Path(folder) / "run")
    except ConfigError as error:
        return {"refused": str(error), "seconds": round(time.perf_counter() - begun, 1)}
    statement, row = result.statement.to_dict(), result.metrics[run.cohorts.rounds]
    assert statement["rounds_released"] == run.cohorts.rounds
    assert statement["epsilon_planned"] <= statement["epsilon_requested"] * (1 + 1e-9)
    return {
        "accuracy": round(100.0 * row["accuracy"], 3),
        "loss": round(row["loss"], 5),
        "noise_multiplier": statement["noise_multiplier"],
        "unit": statement["unit"],
        "seconds": round(time.perf_counter() - begun, 1),
    }


def errors_of(cell: Cell) -> tuple[float, float]:
    """RMSE and MaxSE of the prefix sums that a run's noise leaves, per unit clip norm."""
    from fedmf.factorization import errors
    from fedmf.runs import run_of
    from fedmf.workload import prefix

    plan = fedmf.plan(run_of(FIGURES[cell.figure].form(cell.form).configuration(cell)))
    found = errors(plan.mechanism.factorization, prefix(plan.participation.rounds), plan.sensitivity)
    return found.rmse * plan.noise_multiplier, found.max_se * plan.noise_multiplier
