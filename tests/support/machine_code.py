"""Make the machine code that most tests and the programs they start need, unless it is kept already.

In a fresh checkout every process would make it for itself: half a minute each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedmf.training import FixedPointSum, LocalSGD, LocalTrainer
from tests.support.small_runs import run_small, small_run
from tests.support.training_cases import task_of_kind


def train(sizes: list[int]) -> None:
    """With each program that engine "auto" chooses between: few examples make low rank the cheaper one."""
    task = task_of_kind("classification", sizes)
    total = FixedPointSum(task.model.dimension, 0.3, "cpu")
    trainer = LocalTrainer(task, LocalSGD(batch_size=2))
    trainer.add_updates(task.model.initial(), task.dataset.user_ids, 0, total)


if __name__ == "__main__":
    train([1, 2, 6])
    with tempfile.TemporaryDirectory() as folder:
        run_small(Path(folder) / "run", small_run(mechanism="bisr", bands=4, rounds=4))
