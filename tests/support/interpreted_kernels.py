"""What `triton_worker` runs in Triton's interpreter: clip-and-sum."""

from __future__ import annotations

import torch

from fedmf.clipping.gpu import add_clipped_on_gpu


def clip_and_sum(
    rows: torch.Tensor, width: int, origin: torch.Tensor | None, clip_norm: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, signs, mask and squares of rows of so many entries, which may begin further apart."""
    total = torch.zeros(width, dtype=torch.int64)
    signs, squares, finite = add_clipped_on_gpu(rows[:, :width], origin, clip_norm, scale, total)
    return total, signs, finite, squares
