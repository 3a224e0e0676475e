"""Random numbers that models draw in training, as dropout does: a function of run, round and
user.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def draw_seed(seed: int, t: int, user_id: str) -> int:
    """What torch's generator is seeded with before a user is trained in a round.

    Args:
        seed: public seed of the run.
        t: 0-based round.
        user_id: the user's stable name.
    """
    digest = hashlib.sha256(f"fedmf local draws|{seed}|{t}|{user_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed torch's generator, and the GPU's where users are trained on one."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(
            seed
        )  # the others are not asked, which takes ten times as long
    else:
        torch.manual_seed(seed)


def torch_states(device: torch.device) -> list[bytes]:
    """The states of torch's generators that a model may draw from."""
    states = [torch.get_rng_state()] + (
        [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    )
    return [state.numpy().tobytes() for state in states]


def other_states() -> dict[str, Any]:
    """The states of the global generators that no user's training is seeded with, by name."""
    name, key, *place = np.random.get_state()  # noqa: NPY002 - code of others may use it
    return {
        "Python's random": random.getstate(),
        "NumPy's generator": (name, np.asarray(key).tobytes(), *place),
    }


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Restore the global random generators at the end."""
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002 - code of others may use it
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
