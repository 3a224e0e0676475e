"""Runs whose optimizer needs a second moment and writes down everything it is shown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments.second_moment import SecondMoment
from fedmf.optim.server_optimizer import RoundRelease
from fedmf.runs import session as session_module


class RecordedPair:
    """θ ← θ + u; keeps each round's release."""

    def __init__(self, second_moment: SecondMoment | None, second_form: SecondForm = "per-user") -> None:
        self.second_moment: SecondMoment | None = second_moment
        self.second_form: SecondForm = second_form
        self.seen: list[RoundRelease] = []

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen.append(release)
        return parameters + release.mean.to(parameters.dtype), {}

    def means(self) -> np.ndarray:
        """u_t, shape (rounds, d)."""
        return np.stack([release.mean.numpy() for release in self.seen])

    def seconds(self) -> np.ndarray:
        """q_t, shape (rounds, m)."""
        return np.stack([release.second.numpy() for release in self.seen if release.second is not None])


@contextmanager
def optimizing_with(optimizer: RecordedPair) -> Iterator[RecordedPair]:
    """Sessions opened inside use this optimizer, whatever their configuration says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "server_optimizer", lambda *_: optimizer)
        yield optimizer
