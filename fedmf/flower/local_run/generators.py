"""The global random generators of Python, NumPy and PyTorch: what apps draw from without naming it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def seeded_generators(words: Sequence[int]) -> None:
    """Seed all of them, each with bits of its own, from non-negative integers.

    >>> with generators_kept():
    ...     seeded_generators([1, 2])
    ...     first = random.random()
    ...     seeded_generators([1, 2])
    ...     first == random.random()
    True
    """
    python, numpy, pytorch = np.random.SeedSequence(list(words)).generate_state(3, np.uint64).tolist()
    random.seed(python)
    np.random.seed(numpy & 0xFFFFFFFF)  # noqa: NPY002, as apps draw from it
    if torch.backends.cuda.is_built() and torch.cuda.device_count():
        torch.manual_seed(pytorch)
    else:  # the same without writing down, for a GPU, from where it was called
        torch.default_generator.manual_seed(pytorch)


def fresh_generators() -> None:
    """Seed all of them from the operating system, as a new process should."""
    seeded_generators([random.SystemRandom().getrandbits(128)])


@contextmanager
def generators_kept() -> Iterator[None]:
    """All of them as they were, when the block ends."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(pytorch)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
