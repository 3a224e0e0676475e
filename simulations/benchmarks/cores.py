"""Users trained per second on all cores against one core: by threads, and by processes.

    python simulations/benchmarks/cores.py [--models mlp cnn ...] [--turns 5] [--users 1024]
        [--json]

Models, data and local training are those of `engine.py`. Each turn trains all users on one thread,
on as many threads as this process has cores, and divided among as many processes of one thread, as
`execution.workers` on Ray divides them. Rates are of wall-clock time, so the machine must be idle.
A line has the medians over turns, and the medians of the ratios within turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Final

SPAWN: Final = multiprocessing.get_context("spawn")


def train_on_order(orders: Connection, model: str, users: int) -> None:
    """Train as many of the users as each order says, and answer by the name of the engine."""
    import torch
    from engine import LOCAL, task_of

    from fedmf.clipping.clipped_sum import ClippedSum
    from fedmf.training import LocalTrainer

    torch.set_num_threads(1)
    task = task_of(model, users)
    origin = task.model.initial()
    trainers = dict[int, LocalTrainer]()
    while (order := orders.recv()) is not None:
        count, threads = order
        torch.set_num_threads(threads)
        if threads not in trainers:
            trainers[threads] = LocalTrainer(task, LOCAL)
        names = list(task.dataset.user_ids)[:count]
        trainers[threads].add_updates(origin, names, 0, ClippedSum(origin.numel(), 1.0))
        orders.send(trainers[threads].path)


def timed(children: list[Connection], users: int, threads: int) -> tuple[float, str]:
    """Seconds until some processes have trained as many users each, and their engine."""
    begun = time.perf_counter()
    for child in children:
        child.send((users, threads))
    engines = [child.recv() for child in children]
    return time.perf_counter() - begun, engines[0]


def measure(children: list[Connection], model: str, users: int, turns: int) -> dict[str, object]:
    """The line of a model."""
    cores = len(children)
    one = list[float]()
    threads = list[float]()
    processes = list[float]()
    engine = ""
    for turn in range(turns + 1):
        seconds, engine = timed(children[:1], users, 1)
        seconds_on_threads, _ = timed(children[:1], users, cores)
        seconds_in_processes, _ = timed(children, users // cores, 1)
        if turn:  # the first one prepares and compiles
            one.append(seconds)
            threads.append(seconds_on_threads)
            processes.append(seconds_in_processes)
    return {
        "model": model,
        "engine": engine,
        "cores": cores,
        "users_per_second_one": round(users / statistics.median(one)),
        "users_per_second_threads": round(users / statistics.median(threads)),
        "threads": ratio(one, threads),
        "processes": ratio(one, processes),
    }


def ratio(one: list[float], all_cores: list[float]) -> float:
    """The median ratio of the seconds of turns."""
    pairs = zip(one, all_cores, strict=True)
    return round(statistics.median(alone / together for alone, together in pairs), 2)


def main() -> None:
    """Print a line for each model."""
    from engine import MODELS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--users", type=int, default=1024, help="trained in a turn")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    for model in options.models:
        pipes = [SPAWN.Pipe() for _ in range(cores)]
        for _, theirs in pipes:
            process = SPAWN.Process(target=train_on_order, args=(theirs, model, options.users))
            process.start()
        children = [ours for ours, _ in pipes]
        row = measure(children, model, options.users, options.turns)
        print(json.dumps(row) if options.json else row, flush=True)
        for child in children:
            child.send(None)


if __name__ == "__main__":
    main()
