"""Does any of many drawn users add more than the clip norm? Models, rules and examples of every scale.

    python simulations/clip_fuzz.py [--users 1000000] [--seed 0]

Models and examples are those of `tests/clipping/test_clip_fuzz.py`; compiled steps train each user alone, and
the squares of its integers are summed exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from clipping import test_clip_fuzz as fuzz  # pyright: ignore[reportMissingImports]

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.training import LocalTrainer

KINDS, HALF = ("dense", "convolution"), 20


class Apart(ClippedSum):
    """Notes Σ n² of each user and forgets the sum."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.squares = list[int]()

    def add_made(self, users: int, make: Callable[..., bool]) -> Tensor | None:
        """See `ClippedSum.add_made`; of one user."""
        counted = super().add_made(users, make)
        assert users == 1
        assert counted is not None
        size = np.abs(self.fixed_point.numpy())
        high, low = size >> HALF, size & ((1 << HALF) - 1)
        parts = int(high @ high), int(high @ low), int(low @ low)
        self.squares.append((parts[0] << 2 * HALF) + (parts[1] << HALF + 1) + parts[2])
        self.fixed_point.zero_()
        return counted


def main() -> None:
    """Print how many users were above the limit, and at it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fuzz.USERS = min(2000, options.users)
    begun, above, reached, users, most = time.monotonic(), 0, 0, 0, 0
    draw = 0
    while users < options.users:
        rng = np.random.default_rng([options.seed, draw])
        task, local = fuzz.drawn(KINDS[draw % 2], "auto", rng)
        draw += 1
        trainer = LocalTrainer(task, local)
        if trainer.path != "compiled":  # rates at which updates of made-up users are not finite
            continue
        zeta = fuzz.clip_norm(trainer, rng)
        alone, total = LocalTrainer(task, local, group_size=1), Apart(task.model.dimension, zeta)
        alone.add_updates(task.model.initial(), task.dataset.user_ids, 0, total)
        users += len(total.squares)
        above += sum(square > fuzz.LIMIT for square in total.squares)
        reached += sum(square > 0.99 * fuzz.LIMIT for square in total.squares)
        most = max(most, *total.squares)
        if draw % 20 == 0:
            print(f"{users} users, {above} above, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"{users} users of {draw} tasks: {above} above the clip norm, {reached} at it; the largest Σ n² is "
        f"{most / fuzz.LIMIT:.15f} of 2⁶²; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
