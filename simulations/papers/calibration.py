"""Noise that a run needs, and free parameters of its mechanism, each found once and kept in a file.

A mechanism's free parameters are those of fedmf's own search for the accountant of the run: under
Balls-in-Bins the ones of least amplified error. Accounting of amplified runs is Monte Carlo, takes
seconds, and its noise depends on the accountant's seed in the third digit; one calibration serves
all of them. A run then asks for the same noise without amplification, by the ε that this noise has
without it: training is the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import fedmf
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.mechanisms.design import design
from fedmf.runs.tables.configuration import run_of

__all__ = ["Calibrations"]

#: Of the accountant's random numbers.
SEED: Final = 3
_FREE: Final = {"cgd": "lambda", "bifr": "gamma"}
_PARTS: Final = (
    *("cohorts.", "mechanism.", "privacy."),
    *("server.kind", "server.momentum", "server.schedule"),
)
_NOT_OF_A_POINT: Final = (
    *("privacy.noise-seed", "data.seed", "task.seed", "server.learning-rate"),
    *("execution.evaluate-every", "execution.checkpoint-every"),
)


class Calibrations:
    """Calibrations by point, each made when it is first asked for.

    Args:
        path: of their file, a JSON object a line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        self._epsilons: dict[str, float] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[entry["point"]] = entry

    def entry(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters and noise of a configuration: ``params`` by symbol, ``noise_std`` per unit
        clip norm.
        """
        point = json.dumps(
            {key: keys[key] for key in sorted(keys) if key.startswith(_PARTS)}, sort_keys=True
        )
        if point not in self.found:
            begun = time.process_time()
            entry = {"point": point, **_calibrated(keys)}
            entry["seconds"] = round(time.process_time() - begun, 1)
            self.found[point] = entry
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return self.found[point]

    def keys(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with its mechanism's parameters, asking for its noise without
        amplification.
        """
        own = {key: value for key, value in keys.items() if key not in _NOT_OF_A_POINT}
        if not own.get("privacy.amplified") and _free(own) is None:
            return dict(keys)
        entry = self.entry(own)
        made = {**keys, **_with(entry["params"])}
        if own.get("privacy.amplified"):
            made["privacy.amplified"] = False
            if entry["point"] not in self._epsilons:
                sensitivity = fedmf.plan(run_of(made)).sensitivity.value
                multiplier = entry["noise_std"] / sensitivity
                self._epsilons[entry["point"]] = gaussian_epsilon(multiplier, made["privacy.delta"])
            made["privacy.epsilon"] = self._epsilons[entry["point"]]
        return made


def _free(keys: Mapping[str, Any]) -> str | None:
    """The parameter that is to be searched for."""
    symbol = _FREE.get(str(keys.get("mechanism.kind")))
    return symbol if symbol and symbol not in str(keys.get("mechanism.params")) else None


def _with(params: Mapping[str, float]) -> dict[str, str]:
    return (
        {"mechanism.params": ",".join(f"{name}={value}" for name, value in params.items())}
        if params
        else {}
    )


def _calibrated(keys: Mapping[str, Any]) -> dict[str, Any]:
    run = run_of({**keys, "privacy.noise-seed": SEED})
    symbol = _free(keys)
    params = {}
    privacy = run.privacy
    amplified = bool(keys.get("privacy.amplified"))
    if symbol is not None:
        (row,) = design(
            run.participation,
            [str(keys["mechanism.kind"])],
            privacy.epsilon,
            privacy.delta,
            privacy.adjacency,
            bands=keys.get("mechanism.bands"),
            workload=run.workload.name,
            sampling=str(keys["cohorts.kind"]) if amplified else "none",
        )
        params = {symbol: round(row["params"][symbol], 4)}
        run = run_of({**keys, "privacy.noise-seed": SEED, **_with(params)})
    plan = fedmf.plan(run)
    return {"params": params, "noise_std": plan.noise_multiplier * plan.sensitivity.value}
