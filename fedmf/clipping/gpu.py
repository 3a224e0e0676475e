"""Clipping and summing of rows that lie on an NVIDIA GPU: the twin of `add_clipped`.

It launches the kernels of `fedmf.clipping.gpu_kernels`, which need Triton.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fedmf.clipping.bounded_add import NEAR

#: Users of one program that judges or admits rows.
_AT_ONCE = 128


def add_clipped_on_gpu(
    rows: Tensor,
    origin: Tensor | None,
    clip_norm: float,
    scale: float,
    limit: float,
    totals: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `add_clipped` on the device of ``rows``; norms differ from its own by rounding alone.

    Rows are read three times: for their norms, for the squares of their integers, and to be added
    up. The second and the third pass are the twin of `add_bounded`: both make an integer by
    `_integers`, and a row with squares above its limit is not added. The memory beyond the rows is
    a float64 for each row and `gpu_kernels.BLOCK` entries, and three numbers for each row.

    Args:
        rows: shape (users, d), float32 or float64. A row of norm above 10¹⁵⁴ adds nothing.
        origin: shape (d,), or None for zero.
        clip_norm: ζ.
        scale: norm of the integers of a row of norm ζ.
        limit: as for `add_bounded`.
        totals: shape (1, d), the sum of all rows; or (users, d), one sum for each row; int64;
            changed.

    Returns:
        The signs of the rows, shape (users,), int64; their Σ n², float64; and which count, bool.

    Raises:
        RuntimeError: Triton is not installed.
    """
    if find_spec("triton") is None:
        raise RuntimeError(
            "triton (compiler of the GPU kernels) must be installed for training on a GPU; install"
            " the `triton` extra, or train on the CPU."
        )
    kernels: Any = importlib.import_module("fedmf.clipping.gpu_kernels")
    users, dimension = rows.shape
    device = rows.device
    blocks = -(-dimension // kernels.BLOCK)
    squares = torch.zeros(users, blocks, dtype=torch.float64, device=device)
    factors = torch.zeros(users, dtype=torch.float64, device=device)
    signs = torch.zeros(users, dtype=torch.int64, device=device)
    counted = torch.ones(users, dtype=torch.int8, device=device)
    if users and dimension:
        if rows.stride(1) != 1 and dimension > 1:
            rows = rows.contiguous()
        bounds = [clip_norm, scale, NEAR * clip_norm, limit]
        limits = torch.tensor(bounds, dtype=torch.float64, device=device)
        shifted = origin is not None
        start = origin if shifted else rows
        step = rows.stride(0)
        options = kernels.OPTIONS
        with torch.cuda.device_of(rows):
            kernels.sum_squares[(users, blocks)](
                rows, start, squares, step, dimension, SHIFTED=shifted, **options
            )
            together = (-(-users // _AT_ONCE),)
            kernels.judge[together](
                squares, blocks, limits, factors, signs, counted, users, AT_ONCE=_AT_ONCE, **options
            )
            kernels.square_integers[(users, blocks)](
                rows, start, factors, squares, step, dimension, SHIFTED=shifted, **options
            )
            kernels.admit[together](
                squares, blocks, limits, factors, signs, counted, users, AT_ONCE=_AT_ONCE, **options
            )
            sums_apart = len(totals) > 1
            users_of_program = kernels.USERS
            distance_of_totals = 0
            if sums_apart:
                users_of_program = 1
                distance_of_totals = totals.stride(0)
            tiles = (-(-dimension // kernels.COLUMNS), -(-users // users_of_program))
            kernels.add_scaled[tiles](
                rows,
                start,
                factors,
                totals,
                step,
                distance_of_totals,
                dimension,
                users,
                COLUMNS=kernels.COLUMNS,
                USERS=users_of_program,
                SHIFTED=shifted,
                **options,
            )
    if blocks == 0:
        return signs, squares.sum(dim=1), counted.bool()
    return signs, squares[:, 0], counted.bool()
