"""The pass over parts gives the bits of noise on the whole vector, and the rule's own step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from fedmf.clipping import FixedPointSum
from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.closed_forms import bisr
from fedmf.mechanisms.workload import LearningRateSchedule
from fedmf.noise import GaussianSource, NoiseKey, NoiseStream, cpu
from fedmf.optim import Move, RoundRelease, ServerPass, ServerSGD
from fedmf.participation import Participation

D, ROUNDS, SIZE, STD, ZETA = 5003, 6, 7, 0.31, 0.4
# The pass fuses products and sums, torch does where the processor can: half a unit in the last place of
# entries below 8 for each of two such sums a round, over all rounds.
ROUNDING = ROUNDS * 2 * 2.0**-22
SCHEDULE = LearningRateSchedule("cosine", 0.3, ROUNDS, warmup=2)
FORMS = {
    "past z": bisr(3, ROUNDS).recurrence(),
    "past outputs": banded_toeplitz(3, Participation(ROUNDS, 2, 3)).recurrence(),
}


def source() -> GaussianSource:
    return GaussianSource(NoiseKey.from_seed(4), D)


def summed(seed: int) -> FixedPointSum:
    total = FixedPointSum(D, ZETA)
    total.add_updates(torch.randn(SIZE, D, generator=torch.Generator().manual_seed(seed)))
    return total


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def means(form: str, std: float) -> Iterator[Tensor]:
    """u of every round, from one stream for the whole vector."""
    noise = NoiseStream(source(), FORMS[form], ROUNDS)
    for t in range(ROUNDS):
        noisy = summed(t).total()
        if std:
            noise.add_(noisy, std)
        yield (noisy / SIZE).float()


@pytest.fixture(autouse=True)
def _short_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of these tests are long enough for several threads."""
    monkeypatch.setattr(cpu, "FEWEST_PER_THREAD", 1000)


def test_a_step_in_parts_is_the_step() -> None:
    """In parts on threads it has the bits of one part on one thread, and the rule's own up to rounding."""
    for momentum, decay in [(0.0, 0.0), (0.9, 0.1), (0.37, 0.0)]:
        for form in FORMS:
            for count in [1, 3]:
                rule = ServerSGD(Move(SCHEDULE, decay), momentum)
                expected = torch.randn(D, generator=torch.Generator().manual_seed(9))
                made, state = expected, rule.init(expected)
                alone, alone_state, made_state = made, state, state
                work, whole = (
                    ServerPass(NoiseStream(source(), FORMS[form], ROUNDS), SIZE, STD) for _ in range(2)
                )
                with threads(1):
                    steps = []
                    for t in range(ROUNDS):
                        alone, alone_state = whole.step(t, summed(t), rule, alone, alone_state)
                        steps.append((alone, alone_state))
                with threads(count):
                    for t, mean in enumerate(means(form, STD)):
                        before = [made.clone(), *(value.clone() for value in made_state.values())]
                        given = made, made_state
                        made, made_state = work.step(t, summed(t), rule, made, made_state)
                        assert all(map(torch.equal, [given[0], *given[1].values()], before))
                        expected, state = rule.step(t, expected, RoundRelease(mean, 0.0), state)
                        alone, alone_state = steps[t]
                        assert torch.equal(made, alone)
                        assert made_state.keys() == alone_state.keys() == state.keys()
                        assert all(torch.equal(made_state[name], alone_state[name]) for name in state)
                        torch.testing.assert_close(made, expected, rtol=0, atol=ROUNDING)
                        torch.testing.assert_close(dict(made_state), dict(state), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("std", [0.0, STD])
def test_a_mean_in_parts_is_the_mean(std: float, count: int) -> None:
    work = ServerPass(NoiseStream(source(), FORMS["past z"], ROUNDS), SIZE, std)
    with threads(count):
        for t, mean in enumerate(means("past z", std)):
            assert torch.equal(work.mean(t, summed(t), torch.empty(D)), mean)
    with pytest.raises(HorizonExceededError):
        work.mean(ROUNDS, summed(0), torch.empty(D))
