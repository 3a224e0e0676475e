"""Second moments of clipped updates in exact integer arithmetic: of rows, and summed over users.

`ClippedSum` has a `FeatureSum` next to its total. Both come from the same integers of each user, so
that the bound of the update also bounds its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.bounded_add import FRACTION_BITS
from fedmf.clipping.memory import zero_vector
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment, SecondMoment

#: Name of the sum among the arrays that a worker sends.
_NAME: Final = "second"


def fixed_point_energies(
    rows: Tensor,
    second_moment: SecondMoment,
    bits: int = FRACTION_BITS,
    feature_bits: int = FRACTION_BITS,
) -> Tensor:
    """Return the features of rows n·ζ·2⁻ᴮ in units of ζ²·2⁻ᶠ.

    They are ⌊Σ_{j∈block} n_j²·2^(F − 2B)⌋ for every row n and block.

    Args:
        rows: integers, shape (users, d), int64, each row of norm at most 2ᴮ.
        second_moment: squares or energies of blocks.
        bits: B ≤ 31.
        feature_bits: F ≤ 2B.

    Returns:
        Shape (users, m), int64, non-negative; a row's features sum to at most 2ᶠ.

    Raises:
        ValueError: another kind of second moment, or one of another dimension.

    Guarantees:
        Exact, so the same on every device and in whatever order entries are summed: Σ n² ≤ 2⁶².

    >>> rows = torch.tensor([[3 << 29, -(1 << 30)]])
    >>> (fixed_point_energies(rows, BlockEnergies([2])).double() / 2**31).tolist()
    [[0.8125]]
    """
    second_moment = check_second_moment(second_moment)
    if rows.ndim != 2 or rows.shape[1] != second_moment.dimension:
        raise ValueError(
            f"rows must have shape (users, {second_moment.dimension}) for this second moment; got "
            f"{tuple(rows.shape)}."
        )
    squares = rows * rows
    if isinstance(second_moment, BlockEnergies):
        ends = second_moment.sizes.cumsum(0).to(rows.device) - 1
        through = squares.cumsum(1).index_select(1, ends)
        squares = torch.diff(through, dim=1, prepend=through.new_zeros(len(through), 1))
    return squares >> (2 * bits - feature_bits)


def check_second_moment(second_moment: SecondMoment) -> DiagonalMoment | BlockEnergies:
    """Return a second moment if it is an exact function of integers.

    Raises:
        ValueError: it is neither squares nor energies of blocks.
    """
    if not isinstance(second_moment, DiagonalMoment | BlockEnergies):
        raise ValueError(
            "second moment (of a run) must be squares or block energies; got"
            f" {type(second_moment).__name__}."
        )
    return second_moment


class FeatureSum:
    """The sum over users of the features of their integers, in units of ζ²·2⁻ᶠ; possibly empty.

    Args:
        form: squares or block energies; None for no features.
        device: of the total.
        bits: B of the integers.
        feature_bits: F.

    Attributes:
        total: shape (m,), int64.
        ends: one past the last entry of each block, shape (m,); empty if every entry is a block.

    Raises:
        ValueError: another form of second moment.
    """

    def __init__(
        self, form: SecondMoment | None, device: torch.device, bits: int, feature_bits: int
    ) -> None:
        self.bits = bits
        self.feature_bits = feature_bits
        self._form: DiagonalMoment | BlockEnergies | None = None
        size = 0
        if form is not None:
            self._form = check_second_moment(form)
            size = form.size
        self.total = zero_vector(size, torch.int64, device)
        self.ends: NDArray[np.int64] = np.zeros(0, np.int64)
        if isinstance(self._form, BlockEnergies):
            self.ends = self._form.sizes.cumsum(0).numpy()

    def __bool__(self) -> bool:
        """Return True if there are any features."""
        return self.total.numel() > 0

    def add_rows(self, integers: Tensor) -> None:
        """Add the features of users' integers, shape (users, d)."""
        if self._form is None:
            return
        features = fixed_point_energies(integers, self._form, self.bits, self.feature_bits)
        self.total += features.sum(dim=0)

    @property
    def shift(self) -> int:
        """2B − F, by which squares of integers are cut."""
        return 2 * self.bits - self.feature_bits

    @property
    def parts(self) -> dict[str, Tensor]:
        """The total by its name, as a worker sends it; empty without features."""
        if not self:
            return {}
        return {_NAME: self.total}

    def read(self, parts: Mapping[str, Tensor], users: int) -> Tensor:
        """Check and return the total that a worker sent for so many users.

        Raises:
            ValueError: it has a wrong shape or type, negative features, or more than users·ζ² in
                all.
        """
        if not self:
            return self.total
        second = parts[_NAME]
        if second.dtype != torch.int64 or second.shape != self.total.shape:
            raise ValueError(
                f"slice second must be int64 of shape {tuple(self.total.shape)}; "
                f"got {second.dtype}, {tuple(second.shape)}."
            )
        if bool((second < 0).any()):
            raise ValueError(
                f"slice second must hold sums of squares; got {int(second.min())} units."
            )
        # An integer sum of hostile entries could overflow. In float64 it is right to 2⁻⁵³ of each.
        energy = float(second.to(torch.float64).sum()) * 2.0**-self.feature_bits
        if energy > users:
            raise ValueError(
                f"slice second must add up to at most {users} zeta^2; got {energy:.6g} zeta^2."
            )
        return second.to(self.total.device)

    def values(self, clip_norm: float) -> Tensor:
        """Return Σ_u features(x_u), float64, shape (m,)."""
        return self.total.to(torch.float64) * (clip_norm**2 * 2.0**-self.feature_bits)
