"""Scale-then-privatise (Ganesh, McMahan and Thakurta 2025, arXiv 2507.01129), for the comparison alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmf.optim.adam import ServerAdam
from fedmf.optim.server_optimizer import RoundRelease

__all__ = ["ScaleThenPrivatize"]


@dataclass(frozen=True)
class ScaleThenPrivatize(ServerAdam):
    """Adam whose users scale their updates by s_t before they are clipped, one factor a block:

        u_t = (Σ_u clip_ζ(s_t ⊙ x_u) + [C⁻¹z]_t)/(m s_t),    s_B = g/(√v_B + ρ√v̄),

    with v from the rounds before, of squares of the noisy u_t as they are. g keeps Σ_B |B| s_B² v_B that of
    s = 1, so that ζ keeps its meaning; s_0 = 1.

    Guarantees:
        s_t depends on earlier releases alone, and every user's part of the sum has norm ζ at most whatever
        s_t is: noise for sens(C)·ζ suffices, as without scales.
    """

    def scales(self, state: Mapping[str, Tensor]) -> Tensor:
        """s_t, one a block."""
        v, blocks = state["second"].double(), self.energies.blocks
        if not bool((v > 0).any()):
            return torch.ones_like(v)
        s = 1.0 / (v.sqrt() + self.relative_epsilon * blocks.weighted_mean(v).sqrt())
        return s * (blocks.weighted_mean(v) / blocks.weighted_mean(s.square() * v)).sqrt()

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As of `ServerAdam`, on the mean of the scaled sums."""
        back = self.energies.blocks.spread(1.0 / self.scales(state))
        return super().step(t, parameters, replace(release, mean=release.mean * back), state)
