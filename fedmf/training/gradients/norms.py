"""LayerNorm and GroupNorm of which every user has its own weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmf.compiled import compiled
from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Places, Weight

#: Numbers that are worked on at once: several pixels where there are few channels.
_WIDTH = 128


def _pixels(x: Tensor) -> np.ndarray:
    """Shape (examples, pixels, channels) of a tensor of shape (examples, channels, height, width)."""
    images = x.permute(0, 2, 3, 1).contiguous().numpy()
    return images.reshape(images.shape[0], -1, images.shape[-1])


def _side_by_side(pixels: np.ndarray, like: Tensor) -> Tensor:
    n, c, height, width = like.shape
    return torch.from_numpy(pixels).view(n, height, width, c).permute(0, 3, 1, 2)


def _together(pixels: int, channels: int) -> int:
    """How many pixels are worked on at once."""
    together = 1
    while 2 * together * channels <= _WIDTH and pixels % (2 * together) == 0:
        together *= 2
    return together


def normed_images(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, tuple[np.ndarray, np.ndarray]]:
    """γ·x̂ + b and the means and rates (1/standard deviation) of each example and group.

    Args:
        x: shape (examples, channels, height, width).
        gain: γ, shape (channels,).
        bias: b, shape (channels,).
        groups: of channels.
        eps: added to variances.
    """
    pixels = _pixels(x)
    y = np.empty_like(pixels)
    moments = np.empty((2, len(pixels), groups))
    wide = _together(*pixels.shape[1:])
    channels = pixels.shape[2]
    gains = np.ones(channels, pixels.dtype) if gain is None else gain.numpy()
    biases = np.zeros(channels, pixels.dtype) if bias is None else bias.numpy()
    shape = (len(pixels), -1, wide * channels)
    _normed(pixels.reshape(shape), gains, biases, eps, y.reshape(shape), moments[0], moments[1])
    return _side_by_side(y, x), (moments[0], moments[1])


def normed_images_backward(
    dy: Tensor, x: Tensor, gain: Tensor | None, moments: tuple[np.ndarray, np.ndarray]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, γ and b; arguments as of `normed_images`."""
    slopes, pixels = _pixels(dy), _pixels(x)
    dx = np.empty_like(pixels)
    channels = pixels.shape[2]
    wide = _together(*pixels.shape[1:])
    gains = np.ones(channels, pixels.dtype) if gain is None else gain.numpy()
    shape = (len(pixels), -1, wide * channels)
    sums = np.zeros((2, channels))
    _normed_backward(
        slopes.reshape(shape), pixels.reshape(shape), gains, *moments, dx.reshape(shape), sums[0], sums[1]
    )
    of_gain, of_bias = torch.from_numpy(sums.astype(pixels.dtype))
    return _side_by_side(dx, x), of_gain, of_bias


@compiled
def _normed(x, gain, bias, eps, y, means, rates):
    wide, channels, groups = x.shape[2], gain.size, means.shape[1]
    numbers = x.shape[1] * wide // groups
    sums, squares = np.empty(wide), np.empty(wide)
    factor, offset = np.empty_like(x[0, 0]), np.empty_like(x[0, 0])
    for n in range(x.shape[0]):
        sums[:] = 0.0
        squares[:] = 0.0
        for p in range(x.shape[1]):
            for c in range(wide):
                value = np.float64(x[n, p, c])
                sums[c] += value
                squares[c] += value * value
        for g in range(groups):
            total, total_squares = 0.0, 0.0
            for c in range(wide):
                if c % channels * groups // channels == g:
                    total += sums[c]
                    total_squares += squares[c]
            mean = total / numbers
            means[n, g] = mean
            rates[n, g] = 1.0 / np.sqrt(max(total_squares / numbers - mean * mean, 0.0) + eps)
        for c in range(wide):
            channel = c % channels
            g = channel * groups // channels
            scale = gain[channel] * rates[n, g]
            factor[c] = scale
            offset[c] = bias[channel] - means[n, g] * scale
        for p in range(x.shape[1]):
            for c in range(wide):
                y[n, p, c] = x[n, p, c] * factor[c] + offset[c]


@compiled
def _normed_backward(dy, x, gain, means, rates, dx, of_gain, of_bias):
    """With h = ∂/∂x̂ = γ·dy: ∂/∂x = rate·(h − mean of h − x̂·mean of h·x̂), means over example and group."""
    wide, channels, groups = x.shape[2], gain.size, means.shape[1]
    numbers = x.shape[1] * wide // groups
    sums, products = np.empty(wide), np.empty(wide)
    by_dy, by_x, offset = np.empty_like(x[0, 0]), np.empty_like(x[0, 0]), np.empty_like(x[0, 0])
    first, second = np.empty(groups), np.empty(groups)
    for n in range(x.shape[0]):
        sums[:] = 0.0
        products[:] = 0.0
        for p in range(x.shape[1]):
            for c in range(wide):
                slope = np.float64(dy[n, p, c])
                sums[c] += slope
                products[c] += slope * np.float64(x[n, p, c])
        first[:] = 0.0
        second[:] = 0.0
        for c in range(wide):
            channel = c % channels
            g = channel * groups // channels
            with_normed = (products[c] - means[n, g] * sums[c]) * rates[n, g]
            of_gain[channel] += with_normed
            of_bias[channel] += sums[c]
            first[g] += gain[channel] * sums[c]
            second[g] += gain[channel] * with_normed
        for c in range(wide):
            channel = c % channels
            g = channel * groups // channels
            rate = rates[n, g]
            slope = rate * rate * second[g] / numbers
            by_dy[c] = gain[channel] * rate
            by_x[c] = -slope
            offset[c] = slope * means[n, g] - rate * first[g] / numbers
        for p in range(x.shape[1]):
            for c in range(wide):
                dx[n, p, c] = dy[n, p, c] * by_dy[c] + x[n, p, c] * by_x[c] + offset[c]


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
