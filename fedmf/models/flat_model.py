"""Models as flat float32 vectors."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

#: Names under which normalisation layers keep statistics of the data they saw.
_STATISTICS: Final = re.compile(r"(^|\.)(running_(mean|var)|num_batches_tracked)$")


@dataclass(frozen=True, eq=False)
class FlatModel:
    """A module with trained parameters that are exchanged as one float32 vector of length d.

    The module itself is only a template: trained parameters always come from the caller. Parameters
    that do not require a gradient, and buffers, are constants of the model: they are not trained,
    clipped or sent, and they are no part of d. A parameter under several names counts once, and
    stays one.

    Raises:
        ValueError: the module keeps statistics of data (a BatchNorm's would leave the client
            unclipped and without noise), is lazy, has sparse gradients, trains a parameter that is
            not float32, or none at all.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        lazy = [name for name, p in self.module.named_parameters() if is_lazy(p)]
        if lazy:
            raise ValueError(
                f"model must have parameters of known shapes; got {lazy[0]!r} of a lazy module."
                " Call the module once on an example first."
            )
        sparse = [
            name
            for name, part in self.module.named_modules()
            if getattr(part, "sparse", False) is True
        ]
        if sparse:
            raise ValueError(
                "model must have dense gradients, which are clipped and noised; got sparse=True in"
                f" {sparse[0]!r}. Leave it out."
            )
        kept = [name for name, _ in self.module.named_buffers() if _STATISTICS.search(name)]
        if kept:
            raise ValueError(
                f"model must keep no running statistics; got {kept[0]!r}. Statistics such as"
                " BatchNorm's would be released without clipping or noise: use GroupNorm or"
                " LayerNorm."
            )
        wrong = [name for name, p in self.trained.items() if p.dtype != torch.float32]
        if wrong:
            raise ValueError(
                f"model parameters must be float32; got {wrong[0]!r} of another type. Call"
                " module.float()."
            )
        if self.dimension == 0:
            frozen = "; all of them are frozen (requires_grad is False)" if self.constants else ""
            raise ValueError(f"model must have parameters to train; got none{frozen}.")

    @cached_property
    def trained(self) -> dict[str, nn.Parameter]:
        """The template's parameters that require a gradient, by the first name of each, in
        order.
        """
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def _places(self) -> dict[str, str]:
        """By every place of a module that holds a trained parameter, the parameter's first name.

        A module that is used twice is one place: torch would put back what it took out of the first
        of its names for the second one.
        """
        first = {id(p): name for name, p in self.trained.items()}
        return {
            f"{prefix}.{name}" if prefix else name: first[id(p)]
            for prefix, module in self.module.named_modules()
            for name, p in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in first
        }

    @cached_property
    def _buffers(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())

    @property
    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters, then buffers, by name."""
        frozen = {
            name: p.detach() for name, p in self.module.named_parameters() if not p.requires_grad
        }
        return {**frozen, **dict(self.module.named_buffers())}

    @property
    def dimension(self) -> int:
        """d, the number of trained parameters."""
        return sum(p.numel() for p in self.trained.values())

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of the tensors in the order of the flat vector."""
        return tuple(p.shape for p in self.trained.values())

    @property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of each trained parameter in the order of the flat vector."""
        return tuple((name, tuple(p.shape)) for name, p in self.trained.items())

    def initial(self) -> Tensor:
        """The template's trained parameters as a flat vector on the CPU, shape (d,)."""
        return torch.cat([p.detach().cpu().reshape(-1) for p in self.trained.values()])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a (…, d) tensor by parameter name; leading dimensions are kept."""
        views = {}
        offset = 0
        for name, p in self.trained.items():
            views[name] = flat[..., offset : offset + p.numel()].reshape(
                (*flat.shape[:-1], *p.shape)
            )
            offset += p.numel()
        return views

    def flatten(self, parameters: dict[str, Tensor], leading: int = 0) -> Tensor:
        """The inverse of ``unflatten`` with ``leading`` leading dimensions."""
        parts = (parameters[name] for name in self.trained)
        return torch.cat([part.reshape(*part.shape[:leading], -1) for part in parts], dim=-1)

    def forward(self, flat: Tensor, features: Tensor | Mapping[str, Tensor]) -> Tensor:
        """The module's outputs at the flat parameters θ, shape (d,)."""
        return self.call(self.unflatten(flat), features)

    def call(
        self, parameters: dict[str, Tensor], features: Tensor | Mapping[str, Tensor]
    ) -> Tensor:
        """The module's outputs at trained parameters by name; several features are arguments by
        name.

        Guarantees: no buffer is another one afterwards, whatever the module does.
        """
        arguments, named = (
            ((features,), {}) if isinstance(features, Tensor) else ((), dict(features))
        )
        # Copies, so that a pass that writes into a buffer leaves nothing behind for the next user.
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        values = {place: parameters[name] for place, name in self._places.items()}
        return torch.func.functional_call(
            self.module, {**values, **buffers}, arguments, named, tie_weights=False
        )

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        """All of the module's state at θ, constants and every name of a tied parameter included.

        Args:
            flat: shape (d,).

        Returns:
            What ``load_state_dict`` of the same module takes.
        """
        values = self.unflatten(flat)
        names = {id(p): name for name, p in self.trained.items()}
        first = {
            name: names.get(id(p))
            for name, p in self.module.named_parameters(remove_duplicate=False)
        }
        return {
            name: tensor.detach() if first.get(name) is None else values[str(first[name])]
            for name, tensor in self.module.state_dict().items()
        }

    def to(self, device: torch.device | str) -> Self:
        """The same model with its constants on ``device``; this one stays where it is."""
        target = torch.empty(0, device=device).device
        if all(tensor.device == target for tensor in self.constants.values()):
            return self
        return type(self)(copy.deepcopy(self.module).to(target))

    def copied(self) -> Self:
        """A module of its own, such as each thread needs, on the same tensors, which are never
        changed.
        """
        shared: dict[int, Any] = {
            id(tensor): tensor for tensor in (*self.module.parameters(), *self.module.buffers())
        }
        return type(self)(copy.deepcopy(self.module, shared))

    def constants_digest(self) -> str:
        """SHA-256 in hexadecimal of names, types, shapes and values of the constants."""
        digest = hashlib.sha256()
        for name, tensor in self.constants.items():
            digest.update(
                json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode() + b"\n"
            )
            values = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(values.view(torch.uint8).numpy().data)
        return digest.hexdigest()
