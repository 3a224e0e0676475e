"""Finished runs on disk, one JSON object a line; missing ones are trained by a pool of
processes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from calibration import Calibrations
from catalogue import FIGURES
from figures import Cell

import fedmf
from fedmf.runs.simulation import run_in_process
from fedmf.runs.tables.configuration import run_of

__all__ = ["Cells", "errors_of"]

#: Runs between lines on the screen.
_SHOWN: Final = 64


class Cells:
    """Finished runs by cell; a stopped comparison goes on where it ended.

    Args:
        path: of the file; made with the first run.
        calibrations: parameters and noise of the runs.
    """

    def __init__(self, path: Path, calibrations: Calibrations) -> None:
        self.path = path
        self.calibrations = calibrations
        self.found: dict[Cell, Mapping[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[Cell(**entry["cell"])] = entry["value"]

    def make(self, cells: Iterable[Cell]) -> None:
        """Train what is missing, one run in each process at a time."""
        missing = [cell for cell in dict.fromkeys(cells) if cell not in self.found]
        configurations = [self.configuration(cell) for cell in missing]
        lines = [FIGURES[cell.figure].form(cell.form).lines[cell.line] for cell in missing]
        loops = [line.trained or _trained for line in lines]
        begun = time.monotonic()
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            for done, (cell, value) in enumerate(
                zip(missing, pool.map(_outcome, loops, configurations), strict=True), start=1
            ):
                self.found[cell] = value
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(
                        json.dumps({"cell": dataclasses.asdict(cell), "value": value}) + "\n"
                    )
                if done % _SHOWN == 0 or done == len(missing):
                    print(
                        f"{done}/{len(missing)} runs, {time.monotonic() - begun:.0f} s", flush=True
                    )

    def configuration(self, cell: Cell) -> dict[str, object]:
        """The keys of a run, its mechanism's parameters and noise among them."""
        keys = dict(FIGURES[cell.figure].form(cell.form).configuration(cell))
        rounds = keys["cohorts.rounds"]
        keys |= {"execution.evaluate-every": rounds, "execution.checkpoint-every": rounds}
        return self.calibrations.keys(keys)


def _trained(run: fedmf.Run) -> Mapping[str, float]:
    """Loss and metrics of the released model."""
    with TemporaryDirectory() as place, fedmf.start(run, Path(place) / "run") as session:
        run_in_process(session)
        return session.metrics[run.cohorts.rounds]


def _outcome(
    trained: Callable[[fedmf.Run], Mapping[str, float]], keys: Mapping[str, Any]
) -> dict[str, float | None]:
    """Figures of one run."""
    torch.set_num_threads(1)
    begun = time.process_time()
    row = trained(run_of(keys))
    return {
        "accuracy": round(100.0 * row["accuracy"], 3),
        "loss": round(row["loss"], 5) if math.isfinite(row["loss"]) else None,
        "seconds": round(time.process_time() - begun, 3),
    }


def errors_of(cells: Cells, cell: Cell) -> tuple[dict[str, float], float, list[float]]:
    """Searched parameters of a run's mechanism, its noise, and RMSE and MaxSE of prefix sums; for ζ
    = 1.
    """
    from fedmf.accounting.gaussian import adjacency_factor
    from fedmf.mechanisms.objective import errors
    from fedmf.mechanisms.workload import prefix
    from fedmf.values import parse_parameters

    asked = FIGURES[cell.figure].form(cell.form).configuration(cell)
    keys = cells.configuration(cell)
    searched = "" if asked.get("mechanism.params") else str(keys.get("mechanism.params", ""))
    plan = fedmf.plan(run_of(keys))
    found = errors(
        plan.mechanism.factorization, prefix(plan.participation.rounds), plan.sensitivity
    )
    sigma = plan.noise_multiplier * adjacency_factor(plan.adjacency)
    return (
        parse_parameters(searched.split(",")) if searched else {},
        sigma * plan.sensitivity.value,
        [round(found.rmse * sigma, 4), round(found.max_se * sigma, 4)],
    )
