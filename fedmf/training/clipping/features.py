"""The sum of features of users' updates: second moments, where an optimizer asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.moments import BlockEnergies, SecondMoment
from fedmf.training.clipping.energies import check_second_moment, fixed_point_energies
from fedmf.training.clipping.integers import FRACTION_BITS
from fedmf.training.clipping.memory import zero_vector

#: Of the sum, among what a worker sends.
_NAME = "second"


class FeatureSum:
    """Σ_u ⌊features of u's integers⌋ in units of ζ²·2⁻⁴⁰; a sum of no features where none are asked for.

    Args:
        form: squares or block energies; None for no features.
        device: where the total lives.

    Attributes:
        total: shape (m,), int64.
        ends: one past the last entry of each block, shape (m,); empty if every entry is a block.

    Raises:
        ValueError: another form.
    """

    def __init__(self, form: SecondMoment | None, device: torch.device) -> None:
        self._form = None if form is None else check_second_moment(form)
        size = getattr(self._form, "size", 0)
        on_processor = device.type == "cpu"
        self.total = (
            zero_vector(size, torch.int64)
            if on_processor
            else torch.zeros(size, dtype=torch.int64, device=device)
        )
        self.ends: NDArray[np.int64] = np.zeros(0, np.int64)
        if isinstance(self._form, BlockEnergies):
            self.ends = self._form.sizes.cumsum(0).numpy()

    def __bool__(self) -> bool:
        """Whether there are any features."""
        return self.total.numel() > 0

    def add_rows(self, integers: Tensor) -> None:
        """Add the features of users' integers, shape (users, d)."""
        if self._form is not None:
            self.total += fixed_point_energies(integers, self._form).sum(dim=0)

    @property
    def parts(self) -> dict[str, Tensor]:
        """The total by its name, as a worker sends it; nothing without features."""
        return {_NAME: self.total} if self else {}

    def read(self, parts: Mapping[str, Tensor], users: int) -> Tensor:
        """What a worker sent of so many users.

        Raises:
            ValueError: a wrong shape or type, negative features, or more than users·ζ² in all.
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
            raise ValueError(f"slice second must hold sums of squares; got {int(second.min())} units.")
        # In float64: an integer sum of hostile entries could overflow. It is right to 2⁻⁵³ of each entry.
        energy = float(second.to(torch.float64).sum()) * 2.0**-FRACTION_BITS
        if energy > users:
            raise ValueError(f"slice second must add up to at most {users} zeta^2; got {energy:.6g} zeta^2.")
        return second.to(self.total.device)

    def values(self, clip_norm: float) -> Tensor:
        """Σ_u features(x_u), float64, shape (m,)."""
        return self.total.to(torch.float64) * (clip_norm**2 * 2.0**-FRACTION_BITS)
