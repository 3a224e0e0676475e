"""Where the bits of z(t, i) lie in the keystream, and what one pass over a vector does with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

BLOCK_BYTES: Final = 64
"""A ChaCha20 block: sixteen little-endian 32-bit words w_0 … w_15."""

NORMALS_PER_BLOCK: Final = 16
"""One variable per word: element i is in block ⌊i/16⌋."""

PAIRS_PER_BLOCK: Final = 8
"""Pair k has radius word w_k and angle word w_{8+k}; it gives elements 16c + k (cosine) and 16c + 8 + k."""

REFINED_BELOW: Final = 1 << 16
"""A radius word below this is followed by 64 bits from the refinement stream."""

MAX_DIMENSION: Final = NORMALS_PER_BLOCK * 2**32 - 1
"""Largest d: beyond it the 32-bit block counter of ChaCha20 would wrap and repeat noise."""


@dataclass(frozen=True)
class TileWork:
    """An operation on a row of noise on a processor, in place of adding it to a vector.

    Args:
        count: of the row's elements.
        work: given y and the scale of a `RowPass` for some elements, and the place of the first; called once
            for each tile, by several threads for different ones. It may change y.
    """

    count: int
    work: Callable[[Any, float, int], None]

    @property
    def device(self) -> torch.device:
        """The processor."""
        return torch.device("cpu")

    def numel(self) -> int:
        """How many elements the row has."""
        return self.count


Row = torch.Tensor | TileWork
"""The vector to which a row of noise is added, or an operation on it."""


@dataclass(frozen=True, slots=True)
class RowPass:
    """A row of noise from fresh z and stored vectors s_0, s_1, …, and the part of it that is stored.

        y = Σ_j weights[j]·z(rounds[j], ·) − Σ_m read_weights[m]·s[reads[m]]
        s[writes[m]] ← decays[m]·s[writes[m]] + y     for every m; a decay of 0 overwrites
        out ← out + scale·y

    Args:
        rounds: t of each z, 0 ≤ t < 2⁶⁴, at least one.
        weights: one per round.
        scale: factor of the row, in units of the vector.
        reads: stored vectors that enter y, as they are before anything is written.
        read_weights: one per read.
        writes: stored vectors that change, one after the other.
        decays: one per write.

    Raises:
        ValueError: a round or place is negative, or numbers are too few, too many or not finite.

    >>> RowPass((3, 2), (1.0, -0.5), scale=0.7, reads=(0,), read_weights=(0.2,)).vectors
    1
    """

    rounds: tuple[int, ...]
    weights: tuple[float, ...]
    scale: float = 1.0
    reads: tuple[int, ...] = ()
    read_weights: tuple[float, ...] = ()
    writes: tuple[int, ...] = ()
    decays: tuple[float, ...] = ()
    vectors: int = field(init=False, repr=False, compare=False)
    """How many stored vectors there must be."""

    def __post_init__(self) -> None:
        places = self.reads + self.writes
        factors = self.weights, self.read_weights, self.decays
        fit = tuple(map(len, factors)) == (len(self.rounds), len(self.reads), len(self.writes))
        finite = all(map(math.isfinite, (self.scale, *self.weights, *self.read_weights, *self.decays)))
        if not (self.rounds and fit and finite and min(self.rounds + places) >= 0):
            raise ValueError(
                "row (of noise) must have a round, and for each round and place from 0 on a finite number; "
                f"got {self}. No noise was added."
            )
        object.__setattr__(self, "vectors", max(places) + 1 if places else 0)

    def check_fit(self, out: Row, start: int, stored: torch.Tensor | None) -> None:
        """Refuse tensors that this pass cannot work on, wherever they lie.

        Raises:
            ValueError: `out` is none that noise can be added to, or the stored vectors do not fit it.
        """
        check_vector(out, start)
        if not self.vectors:
            return
        fits = (
            stored is not None
            and (stored.ndim, stored.dtype, stored.device) == (2, torch.float64, out.device)
            and stored.is_contiguous()
            and stored.shape[0] >= self.vectors
            and stored.shape[1] == out.numel()
        )
        if not fits:
            got = "None" if stored is None else f"{stored.dtype}, {tuple(stored.shape)}, {stored.device}"
            raise ValueError(
                f"stored (vectors) must be contiguous float64, at least {self.vectors} of length "
                f"{out.numel()} on {out.device}; got {got}. No noise was added."
            )


def check_vector(out: Row, start: int) -> None:
    """Refuse an `out` no kernel can write to, wherever it lies.

    Raises:
        ValueError: its type, shape or layout, or the elements it stands for, are out of range.
    """
    kinds = torch.float32, torch.float64
    plain = isinstance(out, TileWork)
    if not plain and (out.dtype not in kinds or out.ndim != 1 or not out.is_contiguous()):
        raise ValueError(
            "out (vector) must be a contiguous vector of float32 or float64; "
            f"got {out.dtype} of shape {tuple(out.shape)}, strides {out.stride()}. No noise was added."
        )
    if not 0 <= start <= start + out.numel() <= MAX_DIMENSION:
        raise ValueError(
            f"start, stop (elements) must satisfy 0 <= start <= stop < 2^36; got {start}, "
            f"{start + out.numel()}. No noise was added."
        )


class NoiseKernels(Protocol):
    """The passes of one (key schedule, domain) on one device; horizons and calibration are not known here."""

    def add_(self, row: RowPass, out: Row, start: int, stored: torch.Tensor | None = None) -> None:
        """Add a row of noise to a vector, as `RowPass` says.

        Each element is computed in float64 with fused multiply-adds in the order in which terms are written
        there, y from 0, and rounded to nearest, ties to even, once per stored number.

        Args:
            row: coefficients, rounds and places.
            out: contiguous vector of float32 or float64 on the kernels' device; on a processor also what is
                done with y instead.
            start: global index of out[0]: z is z(t, start), z(t, start + 1), … .
            stored: (vectors, len(out)), contiguous, float64, on the device of `out`; None if the row neither
                reads nor writes any.

        Raises:
            ValueError: the tensors do not fit the row; nothing was written.
        """
        ...
