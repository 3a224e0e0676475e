"""The integers that leave, as they are when noise has just been added to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from fedmf.noise.key import Domain
from fedmf.noise.noise_stream import NoiseStream


@contextmanager
def captured() -> Iterator[dict[Domain, list[np.ndarray]]]:
    """Yield the releases o = G + X of all noise streams meanwhile, a row each, by the domain of the
    noise.
    """
    found: dict[Domain, list[np.ndarray]] = defaultdict(list)
    release_rows = NoiseStream.release_rows

    def release_and_keep(stream: NoiseStream, totals: torch.Tensor) -> None:
        release_rows(stream, totals)
        assert totals.dtype == torch.int64
        found[stream.domain].extend(totals.cpu().numpy().copy())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NoiseStream, "release_rows", release_and_keep)
        yield found
