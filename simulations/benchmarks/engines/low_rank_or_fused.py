"""At how many examples a user local training without weights and in one compiled call take the same time.

    taskset -c 1 python simulations/benchmarks/engines/low_rank_or_fused.py

A row for each chain, number of epochs and number of examples: processor time a user of both programs, trained
in turns, the least of nine; their ratio, and that of `cost`, by which one is chosen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedmf.data.memory import InMemoryDataset
from fedmf.training import FixedPointSum, LocalSGD, Task, classification
from fedmf.training.engines import compiled_programs
from fedmf.training.local import LocalTrainer

CHAINS = ((64, 64), (784, 64), (784, 128), (784, 200), (784, 512))
EPOCHS, EXAMPLES = (1, 3), (8, 12, 16, 20, 25, 30, 40, 60)
USERS, CLASSES, BATCH, REPEATS = 12, 10, 10, 9


def task(inputs: int, hidden: int, examples: int) -> Task:
    """A chain of two layers, and users of so many random examples each."""
    count = USERS * examples
    dataset = InMemoryDataset(
        features=torch.randn(count, inputs),
        labels=torch.randint(0, CLASSES, (count,)),
        owned=tuple(np.arange(count).reshape(USERS, examples)),
        user_ids=tuple(f"user {u}" for u in range(USERS)),
        test_features=torch.randn(CLASSES, inputs),
        test_labels=torch.arange(CLASSES),
        classes=CLASSES,
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    return classification(dataset, model)


def timed(built: Task, local: LocalSGD, program: object) -> Callable[[], float]:
    """Processor seconds a user, trained by this program alone."""
    trainer, origin = LocalTrainer(built, local), built.model.initial()
    trainer._programs = [program]  # type: ignore[list-item]
    users = [str(user) for user in built.dataset.user_ids]

    def once() -> float:
        total = FixedPointSum(origin.numel(), 1.0)
        begun = time.process_time()
        trainer.add_updates(origin, users, 0, total)
        return (time.process_time() - begun) / USERS

    return once


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"{'chain':>10} {'epochs':>6} {'examples':>8} {'low-rank':>9} {'fused':>9} {'ratio':>6} {'cost':>6}"
    )
    for inputs, hidden in CHAINS:
        for epochs in EPOCHS:
            local = LocalSGD(batch_size=BATCH, learning_rate=0.05, epochs=epochs)
            for examples in EXAMPLES:
                built = task(inputs, hidden, examples)
                low_rank, fused = compiled_programs(built, local)
                if not math.isfinite(low_rank.cost(examples)):
                    continue
                pair = [timed(built, local, program) for program in (low_rank, fused)]
                times = [[once() for once in (pair if turn % 2 else pair[::-1])] for turn in range(REPEATS)]
                in_order = [turn if number % 2 else turn[::-1] for number, turn in enumerate(times)]
                first, second = (min(turn[which] for turn in in_order) for which in (0, 1))
                rule = low_rank.cost(examples) / fused.cost(examples)
                what = f"{inputs:>5}×{hidden:<4} {epochs:6} {examples:8}"
                microseconds = f"{1e6 * first:6.0f} µs {1e6 * second:6.0f} µs"
                print(f"{what} {microseconds} {first / second:6.2f} {rule:6.2f}", flush=True)


if __name__ == "__main__":
    main()
