"""Sums of clipped updates beside sums of their second moments, both exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmf.moments import SecondMoment
from fedmf.training.clipping.counted_sum import CountedSum
from fedmf.training.clipping.energies import check_second_moment
from fedmf.training.clipping.fixed_point import FixedPointSum
from fedmf.training.clipping.integers import FRACTION_BITS


class FixedPointPair(FixedPointSum):
    """Σ_u x_u and Σ_u features(x_u) of clipped updates x_u, in exact integer arithmetic.

    Guarantees: order-independent. One user moves the pair by (x, f) with ‖x‖ ≤ ζ and f the features of x
    rounded towards zero to multiples of ζ²·2⁻⁴⁰, in exact arithmetic.

    Args:
        clip_norm: ζ.
        second_moment: squares or block energies; says d.
        device: where the totals live.

    >>> from fedmf.moments import DiagonalMoment
    >>> pair = FixedPointPair(1.0, DiagonalMoment(2))
    >>> _ = pair.add_updates(torch.tensor([[3.0, -4.0], [0.5, 0.0]]))
    >>> pair.second_total().numpy().round(9).tolist()
    [0.61, 0.64]
    """

    def __init__(
        self, clip_norm: float, second_moment: SecondMoment, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(second_moment.dimension, clip_norm, device, check_second_moment(second_moment))

    def like(self) -> FixedPointPair:
        """See `FixedPointSum.like`."""
        assert self.second_moment is not None
        return FixedPointPair(self.clip_norm, self.second_moment, self.fixed_point.device)

    def merge(self, other: FixedPointSum) -> None:
        """See `FixedPointSum.merge`.

        Raises:
            TypeError: the other is no pair.
        """
        if not isinstance(other, FixedPointPair):
            raise TypeError(f"other (sum) must be a pair; got {type(other).__name__}.")
        super().merge(other)
        self._second.add_(other.parts["second"])

    @property
    def lengths(self) -> dict[str, int]:
        """See `FixedPointSum.lengths`."""
        return {**super().lengths, "second": self._second.numel()}

    @property
    def parts(self) -> dict[str, Tensor]:
        """See `FixedPointSum.parts`."""
        return {**super().parts, "second": self._second}

    def add_parts(self, parts: Mapping[str, Tensor], users: int) -> None:
        """Add the parts of another pair with ``users`` clipped updates.

        Raises:
            ValueError: as `FixedPointSum.add_clipped_sum`; or features of a wrong shape or type, negative, or
                adding up to more than users·ζ², which no clipped updates have. Nothing was added.
        """
        second = parts["second"]
        if second.dtype != torch.int64 or second.shape != self._second.shape:
            raise ValueError(
                f"slice second must be int64 of shape {tuple(self._second.shape)}; "
                f"got {second.dtype}, {tuple(second.shape)}."
            )
        if bool((second < 0).any()):
            raise ValueError(f"slice second must hold sums of squares; got {int(second.min())} units.")
        # In float64: an integer sum of hostile entries could overflow. It is right to 2⁻⁵³ of each entry.
        energy = float(second.to(torch.float64).sum()) * 2.0**-FRACTION_BITS
        if energy > users:
            raise ValueError(f"slice second must add up to at most {users} zeta^2; got {energy:.6g} zeta^2.")
        self.add_clipped_sum(parts["sum"], users)
        self._second.add_(second.to(self._second.device))

    def second_total(self) -> Tensor:
        """Σ_u features(x_u), float64, shape (m,)."""
        return self._second.to(torch.float64) * (self.clip_norm**2 * 2.0**-FRACTION_BITS)


@dataclass(frozen=True)
class ClippedSums:
    """What workers and server do with users' updates before any noise: clip each to ζ and add them up.

    Args:
        dimension: d.
        clip_norm: ζ.
        second_moment: whose features are summed beside the updates; None for the updates alone.
        counted: whether signs are: how many updates are within ζ, and how many above it.

    Raises:
        ValueError: both a second moment and signs.
    """

    dimension: int
    clip_norm: float
    second_moment: SecondMoment | None = None
    counted: bool = False

    def __post_init__(self) -> None:
        if self.counted and self.second_moment is not None:
            raise ValueError(
                "counted (signs) must be false with a second moment: no theorem covers the three."
            )

    def at(self, clip_norm: float | None) -> ClippedSums:
        """The same with another ζ; None leaves it."""
        return self if clip_norm in (None, self.clip_norm) else replace(self, clip_norm=clip_norm)

    def empty(self, device: torch.device | str = "cpu") -> FixedPointSum:
        """A sum of no updates."""
        if self.counted:
            return CountedSum(self.dimension, self.clip_norm, device)
        if self.second_moment is None:
            return FixedPointSum(self.dimension, self.clip_norm, device)
        return FixedPointPair(self.clip_norm, self.second_moment, device)
