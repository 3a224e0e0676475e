"""Does any of many drawn users add more than the clip norm? Models, rules and examples of every
scale.

    python simulations/clip_fuzz.py [--users 1000000] [--seed 0]

Models and examples are those of `tests/clipping/test_clip_fuzz.py`; compiled steps train the users,
and the squares of each user's integers are summed exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from clipping import test_clip_fuzz as fuzz  # pyright: ignore[reportMissingImports]

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.training import LocalTrainer

KINDS = ("dense", "convolution")
HALF = 20


def square(integers: NDArray[np.int64]) -> int:
    """Σ n², exactly."""
    size = np.abs(integers)
    high = size >> HALF
    low = size & ((1 << HALF) - 1)
    return (int(high @ high) << 2 * HALF) + (int(high @ low) << HALF + 1) + int(low @ low)


def main() -> None:
    """Print how many users were above the limit, and at it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fuzz.USERS = min(2000, options.users)
    begun = time.monotonic()
    above = 0
    reached = 0
    users = 0
    most = 0
    draw = 0
    while users < options.users:
        rng = np.random.default_rng([options.seed, draw])
        task, local = fuzz.drawn(KINDS[draw % 2], "auto", rng)
        draw += 1
        trainer = LocalTrainer(task, local)
        if trainer.path != "compiled":  # rates at which updates of made-up users are not finite
            continue
        zeta = fuzz.clip_norm(trainer, rng)
        models = trainer.updates(task.model.initial(), task.dataset.user_ids, 0)
        rows, _ = clip_to_fixed_point(models, zeta)
        squares = [square(row) for row in rows.numpy()]
        users += len(squares)
        above += sum(found > fuzz.LIMIT for found in squares)
        reached += sum(found > 0.99 * fuzz.LIMIT for found in squares)
        most = max(most, *squares)
        if draw % 20 == 0:
            print(f"{users} users, {above} above, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"{users} users of {draw} tasks: {above} above the clip norm, {reached} at it; the largest"
        f" Σ n² is {most / fuzz.LIMIT:.15f} of 2⁶²; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
