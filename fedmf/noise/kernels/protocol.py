"""What a device must be able to do for noise: one pass over a vector, with z made again from the key."""

from __future__ import annotations

from typing import Protocol

import torch

from fedmf.noise.kernels.row_pass import Row, RowPass


class NoiseKernels(Protocol):
    """The passes of one (key, domain) on one device; horizons and calibration are not known here."""

    def add_(self, row: RowPass, out: Row, start: int, stored: torch.Tensor | None = None) -> None:
        """Add a row of noise to a vector, as `RowPass` says.

        Each element is computed in float64 with fused multiply-adds in the order in which terms are written
        there, y from 0, and rounded to nearest, ties to even, once per stored number. What is added is y as
        it was before it was rounded for storing: released noise must not lie on the grid of a narrow type.

        Args:
            row: coefficients, rounds and places.
            out: contiguous vector of float32, float64 or bfloat16 on the kernels' device; on a processor
                also what is done with y instead.
            start: global index of out[0]: z is z(t, start), z(t, start + 1), … .
            stored: (vectors, len(out)), contiguous, float64, beside `out`; None if the row neither
                reads nor writes any.

        Raises:
            ValueError: the tensors are not those of the row; nothing was written.
        """
        ...
