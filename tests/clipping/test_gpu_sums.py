"""The Triton kernels that clip and sum, interpreted and on a GPU, against the processor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clipping.exact import square_sum
from support.triton_worker import compiler, interpreter, needs_gpu, needs_triton

from fedmf.clipping.bounded_add import FRACTION_BITS, add_clipped, margin, square_limit
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import SIGNS

PANEL = 4096
BLOCK = 131072


@pytest.fixture(scope="module")
def interpret():
    with interpreter() as call:
        yield call


def models(users: int, dimension: int, apart: int = 0) -> torch.Tensor:
    """Rows of very different sizes; one is not finite, one zero, one tiny, one overflows when
    squared.
    """
    rng = np.random.default_rng(users * dimension)
    rows = torch.from_numpy(rng.standard_normal((users, dimension + apart)).astype(np.float32))
    rows *= torch.from_numpy(10.0 ** rng.uniform(-6, 3, (users, 1))).float()
    if users > 5:
        rows[1, dimension // 2] = math.nan
        rows[2, -1 - apart] = -math.inf
        rows[3] = 0.0
        rows[4] = 1e-44
        rows[5] = 3e38
    return rows


def close(one: torch.Tensor, other: torch.Tensor, users: int) -> bool:
    """Norms are summed in another order, wrong by at most d·2⁻⁵³; that moves integers below 2³¹."""
    most = users * (1 + 2.0**FRACTION_BITS * one.numel() * 2.0**-52)
    return bool(((one - other).abs() <= most).all())


#: users, d, entries between rows, shifted, ζ
CASES = {
    "odd, rows apart": (9, 30, 3, True, 0.37),
    "a panel and a bit": (1, PANEL + 17, 0, False, 0.37),
    "a tile, more users than a program": (66, 64, 0, True, 0.37),
    "a block and a bit": (1, BLOCK + PANEL + 5, 11, True, 0.37),
}


@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_the_interpreted_kernels_give_the_integers_of_the_cpu(case, interpret) -> None:
    users, dimension, apart, shifted, zeta = CASES[case]
    rows = models(users, dimension, apart)
    origin = torch.from_numpy(
        np.random.default_rng(1).standard_normal(dimension).astype(np.float32)
    )
    origin = origin * 0.01 if shifted else None
    wanted = ClippedSum(dimension, zeta, statistics=[SIGNS])
    mask = wanted.add_updates(rows[:, :dimension], origin)
    scale = margin(dimension) * 2.0**FRACTION_BITS
    total, signs, finite, squares = interpret(
        "clip_and_sum", rows, dimension, origin, zeta, scale, FRACTION_BITS
    )
    assert torch.equal(finite, mask)
    assert close(total, wanted.fixed_point, users)
    assert int(signs.sum()) == wanted.scalar(SIGNS)
    assert total.any()
    for u, square in enumerate(squares.tolist()):
        alone = wanted.like()
        alone.add_updates(rows[u : u + 1, :dimension], origin)
        exact = square_sum(alone.fixed_point.tolist())
        assert square == pytest.approx(exact, rel=1e-12)


@needs_triton
@pytest.mark.parametrize("scale", [2.0**31 * (1 + 2.0**-20), 2.0**32.5, 1e300, math.inf, math.nan])
def test_rows_that_are_scaled_beyond_the_bound_are_not_added(scale, interpret) -> None:
    """As a mistaken norm would scale them; one that is short is added all the same, on either
    device.
    """
    rows = torch.zeros(3, 700)
    rows[0] = 1.0
    rows[1, 5] = -3.0
    rows[2, 6] = 1e-9
    total, signs, counted, _ = interpret("clip_and_sum", rows, 700, None, 1.0, scale, FRACTION_BITS)
    right = torch.zeros(700, dtype=torch.int64)
    into = torch.zeros(1, 700, dtype=torch.int64)
    none = np.zeros(0, np.int64)
    noted = np.zeros(3, np.int64)
    squared = np.zeros(3)
    given = (
        rows.numpy().ravel(),
        700,
        np.zeros(0, np.float32),
        1.0,
        scale,
        square_limit(700, FRACTION_BITS),
    )
    add_clipped(*given, into.numpy(), none, FRACTION_BITS, none, noted, squared)
    if scale < 2.0**60:
        right[6] = int(float(rows[2, 6]) * scale)
    assert counted.tolist() == (squared >= 0).tolist() == [False, False, bool(right.any())]
    assert torch.equal(total, right)
    assert torch.equal(into[0], right)
    assert int(signs.sum()) == int(noted.sum()) == int(right.any())


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimension", [30, 700])
def test_integers_of_each_row_are_those_of_its_own_sum(dimension, dtype, interpret) -> None:
    """As features on a GPU are made of them; of float64 rows too."""
    rows = models(11, dimension).to(dtype)
    origin = torch.full((dimension,), 0.01, dtype=dtype)
    scale = 2.0**FRACTION_BITS * margin(dimension)
    given = dimension, origin, 0.37, scale, FRACTION_BITS
    apart, *_ = interpret("clip_and_sum", rows, *given, True)
    whole, *_ = interpret("clip_and_sum", rows, *given)
    assert torch.equal(apart.sum(dim=0), whole)
    for u in range(11):
        alone = ClippedSum(dimension, 0.37)
        alone.add_updates(rows[u : u + 1], origin)
        assert close(apart[u], alone.fixed_point, 1)


@needs_triton
def test_a_sum_does_not_depend_on_who_is_in_a_group(interpret) -> None:
    rows = models(11, 90)
    scale = 2.0**FRACTION_BITS * margin(90)
    whole, *_ = interpret("clip_and_sum", rows, 90, None, 1.0, scale, FRACTION_BITS)
    order = torch.from_numpy(np.random.default_rng(3).permutation(11))
    total = torch.zeros_like(whole)
    for part in order.split(4):
        sums, *_ = interpret("clip_and_sum", rows[part], 90, None, 1.0, scale, FRACTION_BITS)
        total += sums
    assert torch.equal(total, whole)


@needs_triton
def test_an_integer_row_has_at_most_the_clip_norm_in_exact_arithmetic(interpret) -> None:
    """Equal entries err the same way."""
    for rows in (torch.full((1, 1000), 1 / 3), torch.full((1, 7), 1e38)):
        dimension = rows.shape[1]
        scale = margin(dimension) * 2.0**FRACTION_BITS
        integers, *_ = interpret("clip_and_sum", rows, dimension, None, 1e-3, scale, FRACTION_BITS)
        square = square_sum(integers.tolist())
        assert 2**62 * (1 - 1e-6) < square <= 2**62


@needs_triton
def test_the_kernels_keep_small_numbers_and_do_not_spill() -> None:
    checks = compiler("clip_code", "square_integers", {"SHIFTED": True})
    sums = compiler("clip_code", "add_scaled", {"COLUMNS": 512, "USERS": 64, "SHIFTED": True})
    for code in (checks, sums):
        assert code["spills"] == 0
        assert "fma" not in code["ptx"]
        assert ".ftz" not in code["ptx"]


@needs_triton
@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_the_integers_of_the_cpu(case) -> None:
    users, dimension, apart, _, zeta = CASES[case]
    rows = models(users, dimension, apart)
    cpu = ClippedSum(dimension, zeta, statistics=[SIGNS])
    gpu = ClippedSum(dimension, zeta, "cuda", statistics=[SIGNS])
    mask = cpu.add_updates(rows[:, :dimension])
    assert torch.equal(gpu.add_updates(rows.cuda()[:, :dimension]).cpu(), mask)
    assert close(gpu.fixed_point.cpu(), cpu.fixed_point, users)
    assert gpu.scalar(SIGNS) == cpu.scalar(SIGNS)
