"""Who knows everything but the key learns no more from a model's last bits than ε and δ allow."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedmf.accounting.gaussian import certified_sigma
from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.mechanisms.closed_forms import identity
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.release.noisy_sum import NoisySum

SCRIPT = Path(__file__).parents[2] / "simulations/attack_lattice.py"
#: With fewer a perfect attacker could be lucky.
TRIALS = 60
DIMENSION = 1000
COHORT = 4
BITS = 31


@pytest.fixture(scope="module")
def attack() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attack_lattice", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def integer_noise(total: np.ndarray, std: float, trial: int) -> np.ndarray:
    """The model that the package makes of the first sum."""
    o = torch.from_numpy(total.copy())
    inverse = identity(1).streaming_inverse()
    NoiseStream(NoiseKey.from_seed(trial), Domain.TRAINING, inverse, 1, DIMENSION, std).release(o)
    return NoisySum(o, 2.0**-BITS).mean(COHORT, torch.float32).numpy()


def box_muller(words: np.ndarray) -> np.ndarray:
    """Pairs of normals of two words of 32 bits each, shape (2, rows, 8): rows of 16."""
    radius = np.sqrt(-2 * np.log((words[0] + 0.5) * 2.0**-32))
    angle = 2 * math.pi * (words[1] + 0.5) * 2.0**-32
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def float_noise(total: np.ndarray, std: float, trial: int) -> np.ndarray:
    """The same with Box–Muller of words of 32 bits, added as float64."""
    words = np.random.default_rng([5, trial]).integers(0, 2**32, (2, DIMENSION // 16 + 1, 8))
    z = box_muller(words).ravel()[:DIMENSION]
    return ((total + std * z) * (2.0**-BITS / COHORT)).astype(np.float32)


def verdicts(attack: ModuleType, noisy: Callable[[np.ndarray, float, int], np.ndarray]) -> Iterator:
    """The truth and verdicts of each trial: did one user bring a vector of the clip norm?"""
    rng = np.random.default_rng(0)
    std = certified_sigma(attack.EPSILON, attack.DELTA) * 2.0**BITS
    for trial in range(TRIALS):
        rows, _ = clip_to_fixed_point(
            torch.from_numpy(rng.standard_normal((1, DIMENSION))), 1.0, BITS
        )
        worlds = [np.zeros(DIMENSION, np.int64), rows[0].numpy()]
        truth = int(rng.integers(2))
        low, high = attack.cells(noisy(worlds[truth], std, trial), COHORT * 2.0**BITS)
        yield (
            truth,
            [
                attack.judge((low, high), worlds, std, lattice)
                for lattice in (attack.OLD, attack.NEW)
            ],
        )


def test_a_first_model_tells_no_more_than_is_allowed(attack: ModuleType) -> None:
    """The lattice of float noise is gone (FEDMF-2026-11)."""
    assert not attack.report(list(verdicts(attack, integer_noise)))


def test_noise_on_a_lattice_is_seen(attack: ModuleType) -> None:
    assert attack.report(list(verdicts(attack, float_noise)))


def test_released_integers_lie_on_no_lattice(attack: ModuleType) -> None:
    """It excludes the true world like the other one."""
    found = list(attack.integer_releases(200))
    assert not attack.report(found)
    assert sum(all(each[0].excluded) for _, each in found) > 190


def test_integers_of_a_lattice_are_seen(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float noise that is rounded to integers before it is added."""

    def release_rows(self: NoiseStream, totals: torch.Tensor) -> None:
        words = np.random.default_rng(6).integers(0, 2**32, (2, len(totals), 8))
        totals += torch.from_numpy(np.rint(self.std * box_muller(words)).astype(np.int64))

    monkeypatch.setattr(NoiseStream, "release_rows", release_rows)
    assert attack.report(list(attack.integer_releases(200)))


def test_the_script_attacks_runs(attack: ModuleType) -> None:
    found = [*attack.label_runs(2), *attack.aggregators(64, 2)]
    assert not attack.report(found)
