"""Models as flat float32 vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["FlatModel"]


@dataclass(frozen=True, eq=False)
class FlatModel:
    """A module whose parameters are exchanged as one float32 vector of length d.

    The module itself is only a template: parameters always come from the caller.

    Raises:
        ValueError: the module has buffers (a BatchNorm's statistics would leave the client unclipped
            and without noise), a parameter that is not float32, or none at all.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise ValueError(
                f"model must have no buffers; got {buffers[0]!r}. Statistics such as BatchNorm's would be "
                "released without clipping or noise: use GroupNorm or LayerNorm."
            )
        wrong = [name for name, p in self.module.named_parameters() if p.dtype != torch.float32]
        if wrong:
            raise ValueError(
                f"model parameters must be float32; got {wrong[0]!r} of another type. Call module.float()."
            )
        if self.dimension == 0:
            raise ValueError("model must have parameters; got none.")

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of the tensors in the order of the flat vector."""
        return tuple(p.shape for p in self.module.parameters())

    @property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of each parameter in the order of the flat vector."""
        return tuple((name, tuple(p.shape)) for name, p in self.module.named_parameters())

    def initial(self) -> Tensor:
        """The template's parameters as a flat vector, shape (d,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a (…, d) tensor by parameter name; leading dimensions are kept."""
        views, offset = {}, 0
        for name, p in self.module.named_parameters():
            views[name] = flat[..., offset : offset + p.numel()].reshape((*flat.shape[:-1], *p.shape))
            offset += p.numel()
        return views

    def flatten(self, parameters: dict[str, Tensor], leading: int = 0) -> Tensor:
        """The inverse of ``unflatten`` with ``leading`` leading dimensions."""
        return torch.cat(
            [
                parameters[name].reshape(*parameters[name].shape[:leading], -1)
                for name, _ in self.module.named_parameters()
            ],
            dim=-1,
        )

    def forward(self, flat: Tensor, features: Tensor) -> Tensor:
        """The module's outputs at the flat parameters θ, shape (d,)."""
        return torch.func.functional_call(self.module, self.unflatten(flat), (features,))
