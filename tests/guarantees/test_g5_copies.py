"""G5: two copies of a secret-key run that both go on add independent noise of the stated size."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedmf.noise.key import NoiseKey
from guarantees.small import COHORT, ROUNDS, aggregator, bisr, covariance_fits

DIMENSION = 10_000
COPIED = 5


def releases(path: Path, stop: int) -> np.ndarray:
    """θ at the beginning and after every round up to this one, in which nobody brings anything."""
    start = {"w": np.zeros(DIMENSION, np.float32)}
    with aggregator(path, noise_seed=None).begin(start) as opened:
        models = [opened.model["w"]]
        while opened.t < stop:
            opened.cohort(opened.t)
            models.append(opened.release()["w"])
    return np.stack(models).astype(np.float64)


def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are on two machines: what one remembers of its runs, the other does not know."""
    releases(folder / "run", COPIED)
    noises = []
    for machine in "ab":
        place = folder / machine
        shutil.copytree(folder / "run", place / "run")
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        models = releases(place / "run", ROUNDS)
        assert len(models) == ROUNDS - COPIED + 1
        noises.append(np.diff(models, axis=0) * COHORT)
        with aggregator(place / "run", noise_seed=None).begin(
            {"w": models[0].astype(np.float32)}
        ) as opened:
            said = opened.statement().to_dict()
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    C = bisr(ROUNDS, said["params"]["bands"])[COPIED:, COPIED:]
    # The rows before the copy are common to both and fall out of the difference.
    assert covariance_fits(noises[0] - noises[1], C, math.sqrt(2) * std)


def test_copies_of_a_run_add_independent_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch)


def test_a_reused_sub_key_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = NoiseKey.opening
    monkeypatch.setattr(NoiseKey, "opening", lambda self, _: opening(self, bytes(32)))
    with pytest.raises(AssertionError):
        check(tmp_path, monkeypatch)
