"""LayerNorm and GroupNorm of which every user has its own weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.group_norm import normed_images, normed_images_backward
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Places, Weight


class _Norm(Layer):
    """y = γ·x̂ + b, where x̂ is x less its mean, over its standard deviation."""

    _gain: Weight | None
    _bias: Weight | None

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        for weight in (self._gain, self._bias):
            if weight is not None:
                yield weight

    @abstractmethod
    def _spread(self, weight: Weight, rows: Tensor, like: Tensor) -> Tensor:
        """A weight of every user, such that it broadcasts over activations."""

    @abstractmethod
    def _total(self, gradients: Tensor) -> Tensor:
        """Sums over everything that one number of a weight acted on."""

    @abstractmethod
    def _normed(self, x: Tensor) -> tuple[Tensor, Any]:
        """x̂ and what its gradient needs."""

    @abstractmethod
    def _normed_backward(self, saved: Any, dy: Tensor) -> Tensor:
        """∂/∂x from ∂/∂x̂."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        normed, saved = self._normed(x)
        y = normed
        if self._gain is not None:
            y = normed * self._spread(self._gain, parameters, x)
        if self._bias is not None:
            y = y + self._spread(self._bias, parameters, x)
        return y, (normed, saved)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        normed, saved = saved
        dx = None
        if need_dx:
            scaled = dy if self._gain is None else dy * self._spread(self._gain, into.parameters, dy)
            dx = self._normed_backward(saved, scaled)
        if self._gain is not None and self._gain.trainable:
            self._gain.add(into, self._total(dy * normed))
        if self._bias is not None and self._bias.trainable:
            self._bias.add(into, self._total(dy))
        return dx


class LayerNorm(_Norm):
    """Means over the last dimensions of an example.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: nn.LayerNorm, places: Places) -> None:
        self._shape, self._eps = list(module.normalized_shape), module.eps
        self._gain, self._bias = places.maybe(module.weight), places.maybe(module.bias)

    def _spread(self, weight: Weight, rows: Tensor, like: Tensor) -> Tensor:
        values = weight.of(rows)
        return values.reshape(len(rows), *(1,) * (like.dim() - values.dim()), *self._shape)

    def _total(self, gradients: Tensor) -> Tensor:
        return gradients.flatten(1, -1 - len(self._shape)).sum(dim=1)

    def _normed(self, x: Tensor) -> tuple[Tensor, Any]:
        x = x.contiguous()
        normed, mean, rate = torch.native_layer_norm(x, self._shape, None, None, self._eps)
        return normed, (x, mean, rate)

    def _normed_backward(self, saved: Any, dy: Tensor) -> Tensor:
        x, mean, rate = saved
        return torch.ops.aten.native_layer_norm_backward(
            dy.contiguous(), x, self._shape, mean, rate, None, None, [True, False, False]
        )[0]


class GroupNorm(_Norm):
    """Means over groups of channels and all that is behind them.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: nn.GroupNorm, places: Places) -> None:
        self._groups, self._eps = module.num_groups, module.eps
        self._gain, self._bias = places.maybe(module.weight), places.maybe(module.bias)

    def _spread(self, weight: Weight, rows: Tensor, like: Tensor) -> Tensor:
        return weight.of(rows).reshape(len(rows), 1, -1, *(1,) * (like.dim() - 3))

    def _total(self, gradients: Tensor) -> Tensor:
        return gradients.flatten(3).sum(dim=(1, 3)) if gradients.dim() > 3 else gradients.sum(dim=1)

    def _sizes(self, x: Tensor) -> tuple[int, int, int]:
        """Examples of all users, channels, numbers behind them."""
        return len(x) * x.shape[1], x.shape[2], x[0, 0, 0].numel()

    def _normed(self, x: Tensor) -> tuple[Tensor, Any]:
        flat = x.flatten(0, 1).contiguous()
        normed, *moments = torch.native_group_norm(flat, None, None, *self._sizes(x), self._groups, self._eps)
        return normed.unflatten(0, x.shape[:2]), (flat, *moments)

    def _normed_backward(self, saved: Any, dy: Tensor) -> Tensor:
        dx = torch.ops.aten.native_group_norm_backward(
            dy.flatten(0, 1).contiguous(), *saved, None, *self._sizes(dy), self._groups, [True, False, False]
        )[0]
        return dx.unflatten(0, dy.shape[:2])

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`; images of one user on a processor, next to convolutions, in their own way."""
        if not self._images(x):
            return super().forward(parameters, x)
        gain, bias = (None if w is None else w.of(parameters)[0] for w in (self._gain, self._bias))
        y, moments = normed_images(x[0], gain, bias, self._groups, self._eps)
        return y[None], (x, moments)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        if not self._images(dy):
            return super().backward(saved, dy, into, need_dx)
        x, moments = saved
        gain = None if self._gain is None else self._gain.of(into.parameters)[0]
        dx, *gradients = normed_images_backward(dy[0], x[0], gain, moments)
        for weight, gradient in zip((self._gain, self._bias), gradients, strict=True):
            if weight is not None and weight.trainable:
                weight.add(into, gradient[None])
        return dx[None]

    @staticmethod
    def _images(x: Tensor) -> bool:
        return len(x) == 1 and x.dim() == 5 and x.device.type == "cpu"
