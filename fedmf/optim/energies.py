"""Where a server optimizer takes the second moment of a round from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.optim.blocks import Blocks
from fedmf.optim.server_optimizer import RoundRelease


class Energies(Protocol):
    """Block totals q_t of a round, and what must be released for them.

    Attributes:
        blocks: which coordinates share one.
    """

    @property
    def blocks(self) -> Blocks:
        """Which coordinates share one second moment."""
        ...

    @property
    def second_moment(self) -> SecondMoment | None:
        """What must be released beside the mean."""
        ...

    @property
    def second_form(self) -> SecondForm:
        """How that is formed."""
        ...

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """q_t, shape (blocks.count,), for the mean cast to the type of the parameters."""
        ...


@dataclass(frozen=True)
class SquaredRelease:
    """Post-processing: squares of the noisy mean u_t itself, q_B = ‖u_B‖² − |B|·Var_t.

    With Var_t = `RoundRelease.mean_variance` subtracted it estimates ‖ū_B‖² without bias, ū the mean without
    noise, under independent and correlated noise alike; without, DP-Adam's v is mostly the noise.

    Args:
        blocks: which coordinates share one second moment.
        debias: whether |B|·Var_t is subtracted.

    References:
        Tang, Shpilevskiy and Lécuyer (2024), "DP-AdamBC", for independent noise and single coordinates.
    """

    blocks: Blocks
    debias: bool = True

    @property
    def second_moment(self) -> None:
        """None."""
        return None

    @property
    def second_form(self) -> SecondForm:
        """Of no meaning here."""
        return "per-user"

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """See `Energies.of`."""
        energies = self.blocks.energies(mean)
        if not self.debias:
            return energies
        sizes = torch.ones_like(energies) if self.blocks.count == self.blocks.dimension else self._sizes(mean)
        return energies.sub_(sizes, alpha=release.mean_variance)

    def _sizes(self, like: Tensor) -> Tensor:
        return torch.tensor(self.blocks.sizes, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class ReleasedEnergies:
    """Joint moment estimation: block energies released with noise of their own.

    Args:
        blocks: which coordinates share one second moment.
        form: how it is formed, which decides what v means: "per-user" the mean over users of their energies,
            E_u‖x_u,B‖² = ‖ū_B‖² + Var_u; "squared-mean" ‖ū_B‖² alone.
    """

    blocks: Blocks
    form: SecondForm = "per-user"

    @property
    def second_moment(self) -> SecondMoment:
        """Squares, or sums of squares over the blocks."""
        return self.blocks.second_moment()

    @property
    def second_form(self) -> SecondForm:
        """As given."""
        return self.form

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """See `Energies.of`.

        Raises:
            ValueError: the round released no second moment, or one of another size.
        """
        if release.second is None or release.second.numel() != self.blocks.count:
            got = "none" if release.second is None else release.second.numel()
            raise ValueError(f"q (second) must hold {self.blocks.count} block energies; got {got}.")
        return release.second.to(mean.dtype)
