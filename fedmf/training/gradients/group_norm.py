"""GroupNorm of images whose channels lie side by side, as convolutions on processors leave them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmf.compiled import compiled

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
