"""Finished runs on disk, one JSON object a line; runs that ask the same users are trained together."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from calibration import Calibrations
from catalogue import FIGURES
from figures import Cell

import fedmf

__all__ = ["Cells", "errors_of"]

#: Runs whose results are written at once; what a stopped comparison loses.
_AT_ONCE: Final = 64


class Cells:
    """Finished runs by cell; a stopped comparison goes on where it ended.

    Args:
        path: of the file; made with the first run.
        calibrations: parameters and noise of the runs.
    """

    def __init__(self, path: Path, calibrations: Calibrations) -> None:
        self.path, self.calibrations = path, calibrations
        self.found: dict[Cell, Mapping[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[Cell(**entry["cell"])] = entry["value"]

    def make(self, cells: Iterable[Cell]) -> None:
        """Train what is missing: the runs of one batch ask the same users and are trained together."""
        from fedmf.runs import run_of
        from fedmf.sweeps.together import batches, train_together

        missing = [cell for cell in dict.fromkeys(cells) if cell not in self.found]
        missing.sort(key=lambda cell: (cell.seed, cell.panel))
        begun, done = time.process_time(), 0
        for first in range(0, len(missing), 8 * _AT_ONCE):
            some = missing[first : first + 8 * _AT_ONCE]
            runs = [run_of(self.configuration(cell)) for cell in some]
            for places in batches(runs):
                started = time.process_time()
                trained = train_together([runs[place] for place in places])
                seconds = (time.process_time() - started) / len(places)
                with self.path.open("a", encoding="utf-8") as file:
                    for place, result in zip(places, trained, strict=True):
                        row = result.metrics[runs[place].cohorts.rounds]
                        value = {
                            "accuracy": round(100.0 * row["accuracy"], 3),
                            "loss": round(row["loss"], 5) if math.isfinite(row["loss"]) else None,
                            "seconds": round(seconds, 3),
                        }
                        self.found[some[place]] = value
                        entry = {"cell": dataclasses.asdict(some[place]), "value": value}
                        file.write(json.dumps(entry) + "\n")
                done += len(places)
                spent = time.process_time() - begun
                print(f"{done}/{len(missing)} runs, {spent:.0f} s, {spent / done:.3f} a run", flush=True)

    def configuration(self, cell: Cell) -> dict[str, object]:
        """The keys of a run, its mechanism's parameters and noise among them."""
        keys = dict(FIGURES[cell.figure].form(cell.form).configuration(cell))
        rounds = keys["cohorts.rounds"]
        keys |= {"execution.evaluate-every": rounds, "execution.checkpoint-every": rounds}
        return self.calibrations.keys(keys)


def errors_of(cells: Cells, cell: Cell) -> tuple[dict[str, float], float, list[float]]:
    """Searched parameters of a run's mechanism, its noise, and RMSE and MaxSE of prefix sums; for ζ = 1."""
    from fedmf.factorization import errors
    from fedmf.runs import run_of
    from fedmf.workload import prefix

    asked = FIGURES[cell.figure].form(cell.form).configuration(cell)
    keys = cells.configuration(cell)
    added = {key: value for key, value in keys.items() if key.startswith("mechanism.") and key not in asked}
    plan = fedmf.plan(run_of(keys))
    found = errors(plan.mechanism.factorization, prefix(plan.participation.rounds), plan.sensitivity)
    sigma = plan.noise_multiplier
    params = {key.removeprefix("mechanism."): float(value) for key, value in added.items()}
    return (
        params,
        sigma * plan.sensitivity.value,
        [round(found.rmse * sigma, 4), round(found.max_se * sigma, 4)],
    )
