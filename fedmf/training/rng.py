"""Random numbers that models draw in training, as dropout does.

They are a function of run, round and user: torch's generator is seeded before each user is trained.
The other global generators must not be drawn from, and all are restored afterwards. Dropout layers
draw from a generator of their engine (`OwnDropout`), so that threads need not share one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


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


class OwnDropout(TorchFunctionMode):
    """Within, dropout on a processor draws from a generator that no other thread shares.

    Guarantees:
        The numbers are those that torch draws from its own generator with the same seed.

    >>> values = torch.ones(6)
    >>> dropout = OwnDropout()
    >>> _ = dropout.generator.manual_seed(3)
    >>> with dropout:
    ...     ours = F.dropout(values)
    >>> with torch.random.fork_rng(devices=[]):
    ...     _ = torch.manual_seed(3)
    ...     torch.equal(F.dropout(values), ours)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace dropout and call everything else as it is."""
        if func is F.dropout:
            func = self._dropout
        return func(*args, **(kwargs or {}))

    def _dropout(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Dropout of values, as `torch.nn.functional.dropout` gives it."""
        if not training or not 0.0 < p < 1.0:
            return F.dropout(values, p, training, inplace)
        kept = torch.empty_like(values).bernoulli_(1 - p, generator=self.generator)
        scales = kept.div_(1 - p)
        if inplace:
            return values.mul_(scales)
        return values * scales
