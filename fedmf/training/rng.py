"""Random numbers that models draw in training, as dropout does.

They are a function of run, round and user: torch's generator is seeded before each user is trained.
The other global generators must not be drawn from, and all are restored afterwards.
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
    """The seed of torch's generator before a user is trained in a round.

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
        # torch.manual_seed would seed the generators of other devices, too: ten times as long.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def torch_states(device: torch.device) -> list[bytes]:
    """The states of torch's generators that a model may draw from."""
    states = [torch.get_rng_state().numpy().tobytes()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).numpy().tobytes())
    return states


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
    gpus: list[torch.device] = []
    if device.type == "cuda":
        gpus = [device]
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002 - code of others may use it
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
