"""G2: whatever one user's update is, the sum moves by at most ζ, and nobody else's part of it
moves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.errors import UnsoundSumError
from guarantees.small import (
    CLIP,
    COHORT,
    NAMES,
    ROUNDS,
    aggregator,
    random_rows,
    released_models,
    run_of,
)

DIMENSION = 7
#: Room for float32 models of size 1.
ROUNDING = 1e-6
HOSTILE: dict[str, Any] = {
    "NaN": np.full(DIMENSION, np.nan),
    "one NaN": np.array([np.nan, *[0.1] * (DIMENSION - 1)]),
    "infinity": np.full(DIMENSION, np.inf),
    "1e38": np.full(DIMENSION, 1e38, np.float32),
    "1e300": np.full(DIMENSION, -1e300),
    "long": np.full(DIMENSION, 100 * CLIP, np.float32),
    "zeros": np.zeros(DIMENSION, np.float32),
    "wrong shape": np.ones((DIMENSION, 1), np.float32),
    "no numbers": np.array(["x"] * DIMENSION),
    "nothing": None,
}
#: What cannot be a vector of numbers counts as zero.
ZERO = {"NaN", "one NaN", "infinity", "wrong shape", "no numbers", "nothing", "zeros"}


def first_release(folder: Path, update: Any) -> np.ndarray:
    """θ_1 where one of the cohort brings this and the others what they always bring."""
    rows = random_rows(DIMENSION).astype(np.float32)
    with aggregator(folder).begin({"w": np.zeros(DIMENSION, np.float32)}) as opened:
        victim, *others = opened.cohort(0)
        for user in others:
            assert opened.add(user, {"w": rows[NAMES.index(user)]}) is None
        opened.add(victim, {"v": 0} if update is None else {"w": update})
        return opened.release()["w"].astype(np.float64)


def check_updates(folder: Path) -> None:
    without = first_release(folder / "without", np.zeros(DIMENSION, np.float32))
    for i, (kind, update) in enumerate(HOSTILE.items()):
        moved = first_release(folder / f"{i}", update) - without
        assert np.linalg.norm(moved) * COHORT <= CLIP * (1 + ROUNDING), kind
        assert (kind in ZERO) == (not moved.any()), kind


#: A user's rows; with engine "auto" all users are trained by a compiled program.
ROWS = {"NaN": np.nan, "infinity": np.inf, "1e38": 1e38, "long": 100 * CLIP}


def check_rows(folder: Path, engine: Any) -> None:
    rows = random_rows(DIMENSION)
    worlds = {"without": np.zeros(DIMENSION)} | {
        kind: np.full(DIMENSION, x) for kind, x in ROWS.items()
    }
    models = {}
    for i, (kind, row) in enumerate(worlds.items()):
        rows[0] = row
        local = fedmf.LocalSGD(learning_rate=1.0, batch_size=4, engine=engine)
        models[kind] = released_models(run_of(rows, client=local), folder / f"{i}")
    steps = {kind: np.diff(found, axis=0) for kind, found in models.items()}
    for kind in ROWS:
        moved = np.linalg.norm(steps[kind] - steps["without"], axis=1) * COHORT
        assert (moved <= CLIP * (1 + 20 * ROUNDING)).all(), (kind, moved)
        # u00 takes part in every fourth round; NaN and infinity are a zero to the bit.
        times = ROUNDS * COHORT // len(NAMES) if kind in ("1e38", "long") else 0
        assert (moved > 10 * ROUNDING).sum() == times, kind
        assert times > 0 or np.array_equal(models[kind], models["without"]), kind


ENGINES = ("auto", "loop", "vmap")
CHECKS: dict[str, Callable[[Path], None]] = {"updates": check_updates} | {
    f"rows, {engine}": lambda folder, engine=engine: check_rows(folder, engine)
    for engine in ENGINES
}


@pytest.mark.parametrize("what", CHECKS)
def test_one_user_moves_the_sum_by_the_clip_norm_at_most(what: str, tmp_path: Path) -> None:
    CHECKS[what](tmp_path)


def unclipped(
    total: ClippedSum, updates: Tensor, origin: Tensor | None = None, reported: object = None
) -> Tensor:
    del reported
    x = (updates if origin is None else updates - origin).double() / total.unit
    total._total += torch.nan_to_num(x).clamp(-(2.0**60), 2.0**60).to(torch.int64).sum(0)
    total.users += len(x)
    return torch.ones(len(x), dtype=torch.bool)


@pytest.mark.parametrize("what", ["updates", "rows, loop", "rows, vmap"])
def test_a_skipped_clip_is_seen(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClippedSum, "add_updates", unclipped)
    with pytest.raises((AssertionError, UnsoundSumError)):  # a server checks sums again
        CHECKS[what](tmp_path)
