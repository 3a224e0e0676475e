"""Sums of clipped updates beside the count of those that were within the clip norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmf.training.clipping.fixed_point import FixedPointSum


class CountedSum(FixedPointSum):
    """Σ_u x_u of clipped updates, and Σ_u s_u of their signs: +1 within ζ, −1 above, 0 for the zero vector.

    Guarantees: order-independent. One user moves the pair by (x, s) with ‖x‖ ≤ ζ and s in {−1, 0, 1}, in
    exact arithmetic; one that fails in any way moves it by nothing. A row that was clipped to ζ before, and
    rounded to float32, has the sign that it had.

    Args:
        dimension: d.
        clip_norm: ζ.
        device: where the total lives.

    >>> total = CountedSum(2, 1.0)
    >>> _ = total.add_updates(torch.tensor([[3.0, -4.0], [0.5, 0.0], [0.0, 0.25], [0.0, 0.0]]))
    >>> total.signs
    1
    """

    @property
    def signs(self) -> int:
        """Σ_u s_u."""
        return int(self._signs[0])

    def like(self) -> CountedSum:
        """See `FixedPointSum.like`."""
        return CountedSum(self._total.numel(), self.clip_norm, self._total.device)

    def merge(self, other: FixedPointSum) -> None:
        """See `FixedPointSum.merge`.

        Raises:
            TypeError: the other counts no signs.
        """
        if not isinstance(other, CountedSum):
            raise TypeError(f"other (sum) must count signs; got {type(other).__name__}.")
        super().merge(other)
        self._signs += other._signs

    @property
    def lengths(self) -> dict[str, int]:
        """See `FixedPointSum.lengths`."""
        return {**super().lengths, "signs": 1}

    @property
    def parts(self) -> dict[str, Tensor]:
        """See `FixedPointSum.parts`."""
        return {**super().parts, "signs": torch.from_numpy(self._signs.copy())}

    def add_parts(self, parts: Mapping[str, Tensor], users: int) -> None:
        """Add the parts of another sum with ``users`` clipped updates.

        Raises:
            ValueError: as `FixedPointSum.add_clipped_sum`; or signs of a wrong shape or type, or more of them
                than users. Nothing was added.
        """
        signs = parts["signs"]
        if signs.dtype != torch.int64 or signs.shape != (1,):
            raise ValueError(
                f"slice signs must be int64 of shape (1,); got {signs.dtype}, {tuple(signs.shape)}."
            )
        if not -users <= int(signs) <= users:
            raise ValueError(f"slice signs must add up to at most {users}; got {int(signs)}.")
        self.add_clipped_sum(parts["sum"], users)
        self._signs += signs.numpy()
