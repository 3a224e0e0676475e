"""Users a second of processor time through `LocalTrainer.add_updates`: local training, clip and exact sum.

    taskset -c 1 python simulations/benchmarks/engines/add_updates.py --before OLD_TREE --model mlp cnn

This tree and another in turn, each time in a process of its own; the ratio of each pair and their median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

COHORT, ROUNDS, REPEATS = 50, 4, 8


def users_a_second(model: str) -> float:
    """The best of some repetitions."""
    import torch
    import workload
    from fedmf_run import task

    from fedmf.training import FixedPointSum, LocalSGD
    from fedmf.training.local import LocalTrainer

    torch.set_num_threads(1)
    built = task(model)
    local = LocalSGD(batch_size=workload.BATCH, learning_rate=workload.LEARNING_RATE)
    trainer, origin, best = LocalTrainer(built, local), built.model.initial(), 0.0
    users = [str(user) for user in built.dataset.user_ids]
    for _ in range(REPEATS):
        begun = time.process_time()
        for t in range(ROUNDS):
            total = FixedPointSum(origin.numel(), workload.CLIP_NORM)
            trainer.add_updates(origin, users[t * COHORT : (t + 1) * COHORT], t, total)
        best = max(best, ROUNDS * COHORT / (time.process_time() - begun))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--before", type=Path, help="a tree of fedmf to compare with")
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    if options.before is None:
        print(users_a_second(options.model[0]))
        return
    here = Path(__file__).resolve()
    for model in options.model:
        ratios = []
        for pair in range(options.pairs):
            speeds = {}
            trees = [("before", options.before), ("now", here.parents[3])]
            for name, tree in trees if pair % 2 else trees[::-1]:
                environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, str(here), "--model", model]
                speeds[name] = float(subprocess.check_output(command, env=environment))
            ratios.append(speeds["now"] / speeds["before"])
            print(
                f"{model}: before {speeds['before']:.0f}, now {speeds['now']:.0f}, {ratios[-1]:.3f}",
                flush=True,
            )
        print(f"{model}: median ratio {statistics.median(ratios):.3f} of {len(ratios)} pairs", flush=True)


if __name__ == "__main__":
    main()
