"""Server Adam against torch.optim without noise, and against dense matrices with noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.dense_rules import adam_path, averages, by_torch, membership

from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import LearningRateSchedule, exponential
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.optim import Blocks, Energies, Move, RoundRelease, ServerAdam, ServerOptimizer
from fedmf.participation import Participation

ROUNDS = 100
DIMENSION = 24
CHOSEN = Blocks(((3, 6), (3, 1), (1, 3)))
SINGLE = Blocks.of([(DIMENSION,)], "coordinate")
# Both sides in float64: what is left are sums in another order over 100 steps.
TOLERANCE = 1e-9
FALSE_ALARM = 1e-6
SOURCES: list[Any] = ["squared", "debiased"]


def schedule() -> LearningRateSchedule:
    return LearningRateSchedule("cosine", 0.3, ROUNDS, warmup=5)


def rates() -> list[float]:
    return [schedule()(t) for t in range(ROUNDS)]


def data(seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """θ_0 and updates of very different sizes by coordinate."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-3, 1, DIMENSION, dtype=torch.float64)
    updates = torch.randn(ROUNDS, DIMENSION, generator=generator, dtype=torch.float64) * scales
    return torch.randn(DIMENSION, generator=generator, dtype=torch.float64), updates


def path_of(
    optimizer: ServerOptimizer, start: torch.Tensor, releases: list[RoundRelease]
) -> list[torch.Tensor]:
    state = optimizer.init(start)
    parameters = start
    path = []
    for t, release in enumerate(releases):
        parameters, state = optimizer.step(t, parameters, release, state)
        path.append(parameters)
    return path


def plain(updates: torch.Tensor) -> list[RoundRelease]:
    return [RoundRelease(update, 0.0) for update in updates]


def compare(path: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(path) == ROUNDS
    for mine, theirs in zip(path, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.9), (0.9, 0.0)])
@pytest.mark.parametrize("source", ["squared", "debiased"])
def test_without_noise_it_is_adam(betas: tuple[float, float], source: Any) -> None:
    start, updates = data()
    rule = ServerAdam(
        Move(schedule()), Energies(SINGLE, source), *betas, eps=1e-3, relative_eps=0.0
    )
    expected = by_torch(torch.optim.Adam, start, updates, rates(), betas=betas, eps=1e-3)
    compare(path_of(rule, start, plain(updates)), expected)


def noise_rows(
    C: Factorization, std: float, size: int, domain: Domain, seed: int = 5
) -> torch.Tensor:
    """All rows of the stream that a run adds, shape (n, size), float64; of integers of std·2⁻³²."""
    key = NoiseKey.from_seed(seed)
    stream = NoiseStream(key, domain, C.streaming_inverse(), C.rounds, size, 2.0**32)
    rows = torch.zeros(C.rounds, size, dtype=torch.int64)
    stream.release_rows(rows)
    return rows.to(torch.float64) * (std * 2.0**-32)


STRATEGIES = {
    "square root": square_root(ROUNDS),
    "banded": (
        build(
            "banded-toeplitz", Participation(ROUNDS, 4, 25), exponential(0.9, ROUNDS), 8
        ).factorization
    ),
}


@pytest.mark.parametrize("which", STRATEGIES)
@pytest.mark.parametrize("blocks", [SINGLE, CHOSEN], ids=["single", "chosen"])
def test_noisy_paths_are_products_of_dense_matrices(which: str, blocks: Blocks) -> None:
    """With squares, debiased squares and released energies: A·(G + C⁻¹Z) with dense C⁻¹, E_β."""
    C = STRATEGIES[which]
    start, updates = data()
    inverse = np.linalg.inv(C.materialize())
    white = noise_rows(identity(ROUNDS), 1.0, DIMENSION, Domain.TRAINING).numpy()
    noisy = updates.numpy() + 0.05 * inverse @ white
    sizes = blocks.sizes
    betas = (0.8, 0.95)
    variances = 0.05**2 * np.sum(inverse**2, axis=1)
    rows = updates + noise_rows(C, 0.05, DIMENSION, Domain.TRAINING)
    move = Move(schedule())
    for source in SOURCES:
        rule = ServerAdam(move, Energies(blocks, source), *betas, 1e-3, 0.2)
        path = path_of(
            rule, start, [RoundRelease(u, v) for u, v in zip(rows, variances, strict=True)]
        )
        q = noisy**2 @ membership(sizes).T - (source == "debiased") * np.outer(variances, sizes)
        expected = adam_path(start.numpy(), noisy, q, sizes, rates(), betas, 1e-3, 0.2)
        np.testing.assert_allclose(torch.stack(path).numpy(), expected, rtol=1e-8, atol=1e-8)
    second_white = noise_rows(identity(ROUNDS), 1.0, len(sizes), Domain.SECOND_MOMENT).numpy()
    energies = updates.numpy() ** 2 @ membership(sizes).T
    q = energies + 0.01 * inverse @ second_white
    released = torch.from_numpy(energies) + noise_rows(C, 0.01, len(sizes), Domain.SECOND_MOMENT)
    rule = ServerAdam(move, Energies(blocks, "released"), *betas, 1e-3, 0.2)
    seconds = 0.01**2 * np.sum(inverse**2, axis=1)
    rounds = zip(rows, variances, released, seconds, strict=True)
    path = path_of(rule, start, [RoundRelease(u, v, e, w) for u, v, e, w in rounds])
    expected = adam_path(start.numpy(), noisy, q, sizes, rates(), betas, 1e-3, 0.2)
    np.testing.assert_allclose(torch.stack(path).numpy(), expected, rtol=1e-8, atol=1e-8)


def second_moments(rule: ServerAdam, releases: list[RoundRelease]) -> torch.Tensor:
    """v̂ of every round, shape (n, blocks)."""
    parameters = torch.zeros(rule.energies.blocks.dimension)
    state = rule.init(parameters)
    moments = []
    for t, release in enumerate(releases):
        parameters, state = rule.step(t, parameters, release, state)
        moments.append(state["second"].double() / (1 - rule.beta2 ** (t + 1)))
    return torch.stack(moments)


WIDE = 40_000


@pytest.mark.parametrize("which", ["banded"])
def test_the_noise_of_v_has_the_predicted_variance(which: str) -> None:
    """Each v̂_t has variance τ₂²‖(A C⁻¹)_t‖², by χ² at 1e-6 over 40,000 released energies."""
    C = STRATEGIES[which]
    blocks = Blocks.of([(WIDE,)], "coordinate")
    noise = noise_rows(C, 0.5, WIDE, Domain.SECOND_MOMENT).float()
    rows = 0.25 * C.noise_row_variances()
    move = Move(LearningRateSchedule("constant", 1e-9, ROUNDS))
    rule = ServerAdam(move, Energies(blocks, "released"), 0.0, 0.95)
    releases: list[RoundRelease] = []
    for q, v in zip(noise, rows, strict=True):
        releases.append(RoundRelease(torch.zeros(WIDE), 0.0, q + 4.0, v))
    moments = second_moments(rule, releases)
    expected = 0.25 * np.sum((averages(0.95, ROUNDS) @ np.linalg.inv(C.materialize())) ** 2, axis=1)
    level = FALSE_ALARM / ROUNDS
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], WIDE)
    seen = ((moments - 4.0) ** 2).sum(1).numpy() / expected
    assert ((seen > low) & (seen < high)).all()
    assert not ((seen * 1.1 > low) & (seen * 1.1 < high)).any()


def debiased_mean(C: Factorization, blocks: Blocks, source: Any, wrong: float = 1.0) -> np.ndarray:
    """(v̂_t − ‖ū_B‖²/|B|) averaged over blocks, in standard errors measured over the blocks."""
    noise = noise_rows(C, 0.5, WIDE, Domain.TRAINING)
    inverse = np.linalg.inv(C.materialize())
    variances = wrong * 0.25 * np.sum(inverse**2, axis=1)
    rule = ServerAdam(
        Move(LearningRateSchedule("constant", 1e-9, ROUNDS)), Energies(blocks, source), 0.0, 0.95
    )
    signal = torch.linspace(-1, 1, WIDE)
    releases = [
        RoundRelease((u + signal).float(), v) for u, v in zip(noise, variances, strict=True)
    ]
    error = second_moments(rule, releases) - blocks.means(blocks.energies(signal)).double()
    return (error.mean(1) / (error.std(1) / math.sqrt(blocks.count))).numpy()


@pytest.mark.parametrize(("which", "size"), [("banded", 1), ("square root", 20)])
def test_debiasing_removes_the_bias(which: str, size: int) -> None:
    """By a normal test of the mean over 2,000 blocks or more, at 1e-6.

    A variance that is wrong by 10 % is detected.
    """
    C = STRATEGIES[which]
    blocks = Blocks(((WIDE // size, size),))
    limit = stats.norm.isf(FALSE_ALARM / ROUNDS / 2)
    assert (np.abs(debiased_mean(C, blocks, source="debiased")) < limit).all()
    assert np.abs(debiased_mean(C, blocks, source="debiased", wrong=1.1)).max() > limit
    assert (np.abs(debiased_mean(C, blocks, source="squared")) > limit).all()


def test_a_block_that_noise_takes_below_zero_moves_by_eps_alone() -> None:
    rule = ServerAdam(
        Move(LearningRateSchedule("constant", 1.0, 5)),
        Energies(Blocks(((2, 1),)), "released"),
        0.0,
        0.5,
        0.1,
        0.0,
    )
    release = RoundRelease(torch.tensor([1.0, 1.0]), 0.0, torch.tensor([-3.0, 4.0]), 1.0)
    moved, _ = rule.step(0, torch.zeros(2), release, rule.init(torch.zeros(2)))
    torch.testing.assert_close(moved, torch.tensor([10.0, 1 / 2.1]))


def test_releases_that_do_not_fit_are_rejected() -> None:
    rule = ServerAdam(Move(schedule()), Energies(CHOSEN, "released"))
    with pytest.raises(ValueError, match=r"blocks must cover d = 5 parameters; got 24"):
        rule.init(torch.zeros(5))
    state = rule.init(torch.zeros(DIMENSION))
    with pytest.raises(ValueError, match=r"must hold 7 block energies; got none"):
        rule.step(0, torch.zeros(DIMENSION), RoundRelease(torch.zeros(DIMENSION), 0.0), state)
    wrong = RoundRelease(torch.zeros(DIMENSION), 0.0, torch.zeros(3), 0.0)
    with pytest.raises(ValueError, match=r"must hold 7 block energies; got 3"):
        rule.step(0, torch.zeros(DIMENSION), wrong, state)
