"""Users trained per second on all cores against one core, by the same engine in one process.

    python simulations/benchmarks/cores.py [--models mlp cnn ...] [--turns 11] [--users 128]
        [--json]

Models, data and local training are those of `engine.py`. Turns alternate between one thread and as
many as this process has cores; rates are of wall-clock time, so the machine must be idle. A line
has the medians over turns, and the median of the ratios of neighboring turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
from engine import LOCAL, MODELS, task_of

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.training import LocalTrainer


def timed(model: str, users: int, threads: int) -> tuple[str, Callable[[], float]]:
    """The engine that trains a model, and a function that trains all users and returns seconds."""
    torch.set_num_threads(threads)
    task = task_of(model, users)
    trainer = LocalTrainer(task, LOCAL)
    origin = task.model.initial()
    names = list(task.dataset.user_ids)

    def turn() -> float:
        torch.set_num_threads(threads)
        begun = time.perf_counter()
        trainer.add_updates(origin, names, 0, ClippedSum(origin.numel(), 1.0))
        return time.perf_counter() - begun

    return trainer.path, turn


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--users", type=int, default=128, help="trained in a turn")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    for model in options.models:
        path, one = timed(model, options.users, 1)
        _, several = timed(model, options.users, cores)
        one()
        several()
        turns = [(one(), several()) for _ in range(options.turns)]
        row = {
            "model": model,
            "engine": path,
            "cores": cores,
            "users_per_second_one": round(options.users / statistics.median(t for t, _ in turns)),
            "users_per_second_all": round(options.users / statistics.median(t for _, t in turns)),
            "ratio": round(statistics.median(one / all for one, all in turns), 2),
        }
        print(json.dumps(row) if options.json else row, flush=True)


if __name__ == "__main__":
    main()
