"""What a device must be able to do for noise: three passes over a vector, with regenerated z."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from fedmf.noise.kernels.layout import MAX_DIMENSION

__all__ = [
    "DTYPES",
    "KEPT_DTYPES",
    "NoiseKernels",
    "check_feedback",
    "check_state_space",
    "check_sum",
    "check_vector",
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Of vectors that noise is added to."""

KEPT_DTYPES = (torch.float32, torch.float64)
"""Of ring buffers and states. bfloat16 is not among them: its rounding would move the noise by more than what
one user moves it by (decision 0007)."""


class NoiseKernels(Protocol):
    """The passes of one (key, domain) on one device; horizons and noise scales are the caller's affair.

    Everywhere `out` is a contiguous vector of float32, float64 or bfloat16 on the kernels' device, and
    `start` is the global index of out[0]: z is z(t, start), z(t, start + 1), … . Each element is computed
    in float64 with fused multiply-adds in the order in which terms are written here, and rounded to
    nearest, ties to even, once per stored number. Nothing else than the stated tensors is written.

    Raises:
        ValueError: a dtype, shape, round, slot or coefficient is out of range; nothing was written.
    """

    def accumulate_(
        self, out: torch.Tensor, start: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """out ← out + y, one addition in float64, with y = Σ_j weights[j]·z(rounds[j], ·) summed from 0."""
        ...

    def feedback_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        rounds: Sequence[int],
        weights: Sequence[float],
        ring: torch.Tensor,
        slots: Sequence[int],
        ring_weights: Sequence[float],
        write_slot: int,
    ) -> None:
        """One row of a recurrence on its own outputs, which are kept in a ring buffer.

        y = Σ_j weights[j]·z(rounds[j], ·) − Σ_m ring_weights[m]·ring[slots[m]];  ring[write_slot] ← y,
        rounded to ring's dtype;  out ← out + scale·y.  All slots are read before y is written. What is added
        is y as it was before it was rounded: released noise must not lie on the grid of a narrow dtype.

        Args:
            ring: (r, len(out)), contiguous, float32 or float64.
        """
        ...

    def state_space_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        t: int,
        state: torch.Tensor,
        decays: Sequence[float],
        output_weights: Sequence[float],
    ) -> None:
        """One row of a buffered linear Toeplitz inverse.

        y = z(t, ·) − Σ_m output_weights[m]·state[m];  state[m] ← decays[m]·state[m] + y, rounded to its
        dtype, for every m;  out ← out + scale·y.

        Args:
            state: (buffers, len(out)), contiguous, float32 or float64.
        """
        ...


def check_vector(out: torch.Tensor, start: int) -> None:
    """Refuse an `out` no kernel can write to, wherever it lies."""
    if out.dtype not in DTYPES or out.ndim != 1 or not out.is_contiguous():
        raise ValueError(
            "out (vector) must be a contiguous vector of float32, float64 or bfloat16; "
            f"got {out.dtype} of shape {tuple(out.shape)}, strides {out.stride()}. No noise was added."
        )
    if not 0 <= start <= start + out.numel() <= MAX_DIMENSION:
        raise ValueError(
            f"start, stop (elements) must satisfy 0 <= start <= stop < 2^36; got {start}, "
            f"{start + out.numel()}. No noise was added."
        )


def check_sum(rounds: Sequence[int], weights: Sequence[float]) -> None:
    """Refuse a weighted sum of rounds that has no meaning."""
    if not len(rounds):
        raise ValueError("rounds must name at least one round; got none. No noise was added.")
    _check_coefficients("weights", weights, len(rounds))
    for t in rounds:
        if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < 2**64:
            raise ValueError(f"t (round) must satisfy 0 <= t < 2^64; got {t!r}. No noise was added.")


def check_feedback(
    out: torch.Tensor,
    scale: float,
    ring: torch.Tensor,
    slots: Sequence[int],
    ring_weights: Sequence[float],
    write_slot: int,
) -> None:
    """Refuse a ring buffer that does not fit `out`, and slots it does not have."""
    _check_scale(scale)
    _check_rows("ring", ring, out)
    _check_coefficients("ring_weights", ring_weights, len(slots))
    for slot in (*slots, write_slot):
        if not 0 <= slot < ring.shape[0]:
            raise ValueError(
                f"slot (row of ring) must satisfy 0 <= slot < {ring.shape[0]}; got {slot}. "
                "No noise was added."
            )


def check_state_space(
    out: torch.Tensor,
    scale: float,
    state: torch.Tensor,
    decays: Sequence[float],
    output_weights: Sequence[float],
) -> None:
    """Refuse buffers that do not fit `out` or their coefficients."""
    _check_scale(scale)
    _check_rows("state", state, out)
    _check_coefficients("decays", decays, state.shape[0])
    _check_coefficients("output_weights", output_weights, state.shape[0])


def _check_scale(scale: float) -> None:
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite; got {scale}. No noise was added.")


def _check_rows(name: str, rows: torch.Tensor, out: torch.Tensor) -> None:
    fits = rows.ndim == 2 and rows.shape[1] == out.numel() and rows.device == out.device
    if not fits or rows.dtype not in KEPT_DTYPES or not rows.is_contiguous():
        raise ValueError(
            f"{name} (stored vectors) must be contiguous, (rows, {out.numel()}), float32 or float64, on "
            f"{out.device}; got {rows.dtype} of shape {tuple(rows.shape)} on {rows.device}. "
            "No noise was added."
        )


def _check_coefficients(name: str, values: Sequence[float], count: int) -> None:
    if len(values) != count or not all(map(math.isfinite, values)):
        raise ValueError(f"{name} must be {count} finite numbers; got {list(values)}. No noise was added.")
