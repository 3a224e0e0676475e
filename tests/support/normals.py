"""The standard normal variables of a public seed, to 2⁻⁴⁰."""

from __future__ import annotations

import numpy as np

from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.schedule import KeySchedule

_SCALE = 2.0**40


def normals(seed: int, domain: Domain, rounds: int, size: int) -> np.ndarray:
    """N(t, i) of all rounds, shape (rounds, size): innovations at a scale at which rounding does
    not show.
    """
    innovations = Innovations(KeySchedule.of(NoiseKey.from_seed(seed)), domain)
    return np.stack([innovations.row(t, _SCALE, size) for t in range(rounds)]) / _SCALE
