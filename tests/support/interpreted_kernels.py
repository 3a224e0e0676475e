"""The clip-and-sum kernels as `triton_worker` runs them in Triton's interpreter."""

from __future__ import annotations

import torch

from fedmf.clipping.gpu import add_clipped_on_gpu
from fedmf.clipping.merge import square_limit


def clip_and_sum(
    rows: torch.Tensor,
    width: int,
    origin: torch.Tensor | None,
    clip_norm: float,
    scale: float,
    bits: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, signs, mask and squares of rows of so many entries, which may begin further apart."""
    total = torch.zeros(width, dtype=torch.int64)
    limit = square_limit(width, bits)
    signs, squares, counted = add_clipped_on_gpu(rows[:, :width], origin, clip_norm, scale, limit, total)
    return total, signs, counted, squares
