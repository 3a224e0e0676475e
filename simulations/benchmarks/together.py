"""Runs a second of a sweep's runs: trained together against one by one, in processor time.

    python simulations/benchmarks/together.py [--turns N] [--models R] [--json]

The runs are those of one seed of a sweep on the digits: R of mechanisms and learning rates (240 rounds of 36
of 360 users, and 220 rounds of 64 of 1,438 single examples). A turn carries two of them out one by one, as
`fedmf sweep` does, and then trains all R together; both in this process and with one thread. Ratios are
medians of the turns' ratios of processor seconds a run. That both give the same bits is checked on the way.
Target: 10.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fedmf.runs import LEDGER, ReleasedModel, run_of
from fedmf.sweeps.one_run import carry_out_run
from fedmf.sweeps.together import train_together

MECHANISMS = ("identity", "cgd", "bisr", "banded-toeplitz")
SETTINGS: dict[str, dict[str, Any]] = {
    "360 users": {
        "data.kind": "digits", "data.users": 360, "data.partition": "iid", "model.kind": "mlp",
        "model.hidden-units": "32", "cohorts.rounds": 240, "cohorts.size": 36, "privacy.clip-norm": 0.3,
        "local.batch-size": 8, "local.learning-rate": 0.5, "execution.evaluate-every": 240,
    },
    "1,438 examples": {
        "data.kind": "digits", "data.users": 1438, "data.partition": "each-example", "model.kind": "mlp",
        "model.hidden-units": "32", "cohorts.rounds": 220, "cohorts.size": 64, "privacy.clip-norm": 1.0,
        "privacy.kind": "example-level", "local.batch-size": 1, "local.learning-rate": 1.0,
        "execution.evaluate-every": 220,
    },
}  # fmt: skip


def turn(base: dict[str, Any], models: int, seed: int) -> tuple[float, float]:
    """Processor seconds of a run one by one, and together."""
    rates = [0.05 * 1.2**i for i in range(-(-models // len(MECHANISMS)))]
    asked = [
        {
            **base,
            "mechanism.kind": mechanism,
            **({"mechanism.bands": 4} if mechanism in ("bisr", "banded-toeplitz") else {}),
            "optimizer.learning-rate": rate,
            "privacy.noise-seed": seed,
            "data.seed": seed,
        }
        for rate, mechanism in itertools.product(rates, MECHANISMS)
    ][:models]
    alone, digests = 0.0, []
    for keys in asked[:2]:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            begun = time.process_time()
            carry_out_run(keys, place, Path(folder) / "finished.json", True)
            alone += (time.process_time() - begun) / 2
            assert (place / LEDGER).exists()
            flat = [value.flatten() for value in ReleasedModel.of(place).tensors.values()]
            digests.append(torch.cat(flat))
    begun = time.process_time()
    trained = train_together([run_of(keys) for keys in asked])
    together = (time.process_time() - begun) / len(asked)
    for flat, result in zip(digests, trained, strict=False):
        assert torch.equal(flat, result.parameters)
    return alone, together


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, base in SETTINGS.items():
        turn(base, 4, 99)  # compiles and loads
        turns = [turn(base, options.models, seed) for seed in range(options.turns)]
        alone, together = (statistics.median(values) for values in zip(*turns, strict=True))
        row = {
            "name": f"runs a second trained together, {name}, {options.models} models",
            "value": round(1 / together, 2),
            "unit": "1/s of a processor",
            "baseline": round(1 / alone, 3),
            "ratio": round(statistics.median(a / b for a, b in turns), 2),
        }
        told = f"{row['name']}: {row['value']} {row['unit']}; one by one {row['baseline']}, × {row['ratio']}"
        print(json.dumps(row, ensure_ascii=False) if options.json else told, flush=True)


if __name__ == "__main__":
    main()
