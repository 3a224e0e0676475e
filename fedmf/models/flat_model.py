"""Models as flat float32 vectors.

Training, clipping and noise act on the flat vector of trained parameters; `FlatModel` maps it to a
torch module and back.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedmf.models.frozen import own_copy, refuse_live_statistics


@dataclass(frozen=True, eq=False)
class FlatModel:
    """A module with trained parameters that are exchanged as one float32 vector of length d.

    The module itself is only a template: trained parameters always come from the caller. Parameters
    that do not require a gradient, and buffers, are constants of the model: they are not trained,
    clipped or sent, and they are no part of d. A parameter under several names counts once, and
    stays one.

    Raises:
        ValueError: the module uses statistics of a batch (a BatchNorm that is not frozen would
            leave the client unclipped and without noise), is lazy, has sparse gradients, trains a
            parameter that is not float32, or none at all.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        for name, parameter in self.module.named_parameters():
            if is_lazy(parameter):
                raise ValueError(
                    f"model must have parameters of known shapes; got {name!r} of a lazy module."
                    " Call the module once on an example first."
                )
        object.__setattr__(self, "module", _trainable(self.module))
        for name, part in self.module.named_modules():
            if getattr(part, "sparse", False) is True:
                raise ValueError(
                    "model must have dense gradients, which are clipped and noised; got sparse=True"
                    f" in {name!r}. Leave it out."
                )
        refuse_live_statistics(self.module)
        for name, parameter in self.trained.items():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"model parameters must be float32; got {name!r} of another type. Call"
                    " module.float()."
                )
            if not bool(torch.isfinite(parameter).all()):
                raise ValueError(
                    f"model parameters must be finite; got NaN or infinity in {name!r}. Initialize"
                    " it again."
                )
        if self.dimension == 0:
            frozen = ""
            if self.constants:
                frozen = "; all of them are frozen (requires_grad is False). Leave a part to train"
            raise ValueError(f"model must have parameters to train; got none{frozen}.")

    @cached_property
    def trained(self) -> dict[str, nn.Parameter]:
        """The template's parameters that require a gradient, in order, by their first names."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def _places(self) -> dict[str, str]:
        """The first name of each trained parameter by every place of a module that holds it.

        A module that is used twice is one place: torch would put back what it took out of the first
        of its names for the second one.
        """
        first = self._names_by_identity
        places: dict[str, str] = {}
        for prefix, module in self.module.named_modules():
            for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
                place = f"{prefix}.{name}" if prefix else name
                if id(p) in first:
                    places[place] = first[id(p)]
        return places

    @property
    def _names_by_identity(self) -> dict[int, str]:
        """The first name of each trained parameter by its identity in Python."""
        return {id(p): name for name, p in self.trained.items()}

    @cached_property
    def _buffers(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())

    @property
    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters, then buffers, by name."""
        constants: dict[str, Tensor] = {}
        for name, p in self.module.named_parameters():
            if not p.requires_grad:
                constants[name] = p.detach()
        constants.update(self.module.named_buffers())
        return constants

    @property
    def constant_state(self) -> dict[str, Tensor]:
        """The constants in the module's state, by the names of the user's own module."""
        trained = self._names_by_identity
        state: dict[str, Any] = self.module.state_dict(keep_vars=True)
        constants: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if isinstance(tensor, Tensor) and id(tensor) not in trained:
                constants[self._own_name(name)] = tensor.detach()
        return constants

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
        """Name and shape of each trained parameter in the order of the flat vector.

        Names are those of the user's own module, also within a wrapper such as `LogitsOf`.
        """
        return tuple((self._own_name(name), tuple(p.shape)) for name, p in self.trained.items())

    @property
    def tied(self) -> dict[str, str]:
        """Further names of trained parameters in the module's state, each with the first name."""
        first = self._names_by_identity
        state = self.module.state_dict()
        tied: dict[str, str] = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if name in state and first.get(id(p), name) != name:
                tied[self._own_name(name)] = self._own_name(first[id(p)])
        return tied

    def _own_name(self, name: str) -> str:
        """The name that the user's own module has for a parameter of a wrapper."""
        return name.removeprefix(getattr(self.module, "WRAPPED", ""))

    def initial(self) -> Tensor:
        """Return the template's trained parameters as a flat vector on the CPU, shape (d,)."""
        return torch.cat([p.detach().cpu().reshape(-1) for p in self.trained.values()])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a (…, d) tensor by parameter name; leading dimensions stay."""
        views: dict[str, Tensor] = {}
        offset = 0
        for name, p in self.trained.items():
            part = flat[..., offset : offset + p.numel()]
            views[name] = part.reshape((*flat.shape[:-1], *p.shape))
            offset += p.numel()
        return views

    def flatten(self, parameters: dict[str, Tensor], leading: int = 0) -> Tensor:
        """Return the inverse of ``unflatten`` with ``leading`` leading dimensions."""
        parts: list[Tensor] = []
        for name in self.trained:
            part = parameters[name]
            parts.append(part.reshape(*part.shape[:leading], -1))
        return torch.cat(parts, dim=-1)

    def forward(self, flat: Tensor, features: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the module's outputs at the flat parameters θ, shape (d,)."""
        return self.call(self.unflatten(flat), features)

    def call(
        self, parameters: dict[str, Tensor], features: Tensor | Mapping[str, Tensor]
    ) -> Tensor:
        """Return the module's outputs at trained parameters by name.

        Several features are arguments by name.

        Guarantees: no buffer has changed afterwards, whatever the module does.
        """
        # Copies, so that a pass that writes into a buffer leaves nothing behind for the next user.
        values = {name: buffer.clone() for name, buffer in self._buffers.items()}
        for place, name in self._places.items():
            values[place] = parameters[name]
        arguments: tuple[Tensor, ...] = ()
        named: dict[str, Tensor] = {}
        if isinstance(features, Tensor):
            arguments = (features,)
        else:
            named = dict(features)
        return torch.func.functional_call(self.module, values, arguments, named, tie_weights=False)

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the module's full state at θ, with constants and every name of a tied parameter.

        Args:
            flat: θ, shape (d,).

        Returns:
            A dict that ``load_state_dict`` of the same module takes.
        """
        values = self.unflatten(flat)
        first = self._names_by_identity
        state: dict[str, Tensor] = dict(self.module.state_dict())
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if id(p) in first and name in state:
                state[name] = values[first[id(p)]]
        return state

    def to(self, device: torch.device | str) -> Self:
        """Return this model with its constants on ``device``; this one stays where it is."""
        target = torch.empty(0, device=device).device
        if all(tensor.device == target for tensor in self.constants.values()):
            return self
        return type(self)(copy.deepcopy(self.module).to(target))

    def copied(self) -> Self:
        """Return a model with a module of its own, such as each thread needs.

        Both modules share their tensors, which are never changed.
        """
        return type(self)(own_copy(self.module))

    def constants_digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of names, types, shapes and values of constants."""
        digest = hashlib.sha256()
        for name, tensor in self.constants.items():
            head = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
            digest.update(head.encode() + b"\n")
            values = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(values.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _trainable(module: nn.Module) -> nn.Module:
    """The module; a copy if it was made in inference mode, in which no tensor can be trained."""
    tensors = (*module.parameters(), *module.buffers())
    if not any(tensor.is_inference() for tensor in tensors):
        return module
    with torch.inference_mode(False):
        copies: dict[int, Any] = {}
        for parameter in module.parameters():
            values = parameter.detach().clone()
            copies[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
        for buffer in module.buffers():
            copies[id(buffer)] = buffer.clone()
        return copy.deepcopy(module, copies)
