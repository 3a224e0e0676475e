"""The clip-and-sum kernels as `triton_worker` runs them in Triton's interpreter."""

from __future__ import annotations

import torch

from fedmf.clipping.bounded_add import square_limit
from fedmf.clipping.gpu import add_clipped_on_gpu


def clip_and_sum(
    rows: torch.Tensor,
    width: int,
    origin: torch.Tensor | None,
    clip_norm: float,
    scale: float,
    bits: int,
    apart: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, signs, mask and squares of rows of so many entries, which may begin further apart.

    The sum is one of each row if they are added apart.
    """
    totals = torch.zeros(len(rows) if apart else 1, width, dtype=torch.int64)
    limit = square_limit(width, bits)
    signs, squares, counted = add_clipped_on_gpu(
        rows[:, :width], origin, clip_norm, scale, limit, totals
    )
    return totals if apart else totals[0], signs, counted, squares
