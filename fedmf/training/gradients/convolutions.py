"""Convolution and pooling of which every user has its own kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer

__all__ = ["ConvolutionByProducts", "ConvolutionByUser", "MaxPool", "channels_last"]


def channels_last(x: Tensor) -> Tensor:
    """The same numbers, shape (batch, channels, height, width), with the channels of a pixel side by side.

    Torch calls a tensor of one channel contiguous either way and then works in the slow order; spelling out
    the strides decides it.
    """
    n, c, h, w = x.shape
    if c == 1:
        return x.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))
    return x.contiguous(memory_format=torch.channels_last)


class _Convolution(Layer):
    """What both ways of computing it share.

    Args:
        module: what it stands for.
        start: where its parameters begin in the flat vector; kernels come before the bias.
    """

    has_parameters = True

    def __init__(self, module: nn.Conv2d, start: int) -> None:
        assert not isinstance(module.padding, str)
        self._stride, self._padding, self._dilation = module.stride, module.padding, module.dilation
        self._kernels = module.weight.shape
        self._weight = slice(start, start + module.weight.numel())
        self._bias = slice(self._weight.stop, self._weight.stop + module.out_channels)
        self._has_bias = module.bias is not None

    def _view(self, rows: Tensor) -> Tensor:
        return rows[:, self._weight].view(-1, *self._kernels)


class ConvolutionByUser(_Convolution):
    """One user after another with the library's convolution: the fastest on processors.

    A convolution of many channels does enough arithmetic for one call; a grouped one over users is slower.
    """

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        weights = self._view(parameters)
        inputs = [channels_last(part) for part in x]
        outputs = []
        for u, part in enumerate(inputs):
            bias = parameters[u, self._bias] if self._has_bias else None
            kernels = channels_last(weights[u])
            outputs.append(F.conv2d(part, kernels, bias, self._stride, self._padding, self._dilation))
        return _stacked(outputs), inputs

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        weights, targets = self._view(into.parameters), self._view(into.target)
        inputs = []
        for u, x in enumerate(saved):
            dx, kernels, bias = torch.ops.aten.convolution_backward(
                channels_last(dy[u]),
                x,
                channels_last(weights[u]),
                [self._kernels[0]],
                self._stride,
                self._padding,
                self._dilation,
                False,
                [0, 0],
                1,
                [need_dx, True, self._has_bias],
            )
            inputs.append(dx)
            into.add(targets[u], kernels)
            if self._has_bias:
                into.add(into.target[u, self._bias], bias)
        return _stacked(inputs) if need_dx else None


def _stacked(parts: list[Tensor]) -> Tensor:
    """One leading dimension more; without copying if there is one part."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


class ConvolutionByProducts(_Convolution):
    """All users in one batched matrix product of unfolded patches: for devices with many small cores."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        users, batch, _, height, width = x.shape
        patches = F.unfold(
            x.flatten(0, 1), self._kernels[2:], self._dilation, self._padding, self._stride
        ).unflatten(0, (users, batch))
        columns = patches.transpose(1, 2).flatten(2)
        kernels = self._view(parameters).flatten(2)
        if self._has_bias:
            y = torch.baddbmm(parameters[:, self._bias, None], kernels, columns)
        else:
            y = torch.bmm(kernels, columns)
        size = [
            (length + 2 * p - d * (k - 1) - 1) // s + 1
            for length, p, d, k, s in zip(
                (height, width), self._padding, self._dilation, self._kernels[2:], self._stride, strict=True
            )
        ]
        return y.unflatten(2, (batch, *size)).transpose(1, 2), (x.shape, columns)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        shape, columns = saved
        users, batch = shape[:2]
        outer = dy.transpose(1, 2).flatten(2)
        dx = None
        if need_dx:
            patches = torch.bmm(self._view(into.parameters).flatten(2).mT, outer)
            patches = patches.unflatten(2, (batch, -1)).transpose(1, 2).flatten(0, 1)
            dx = F.fold(
                patches, shape[3:], self._kernels[2:], self._dilation, self._padding, self._stride
            ).unflatten(0, (users, batch))
        flat = into.target[:, self._weight].view(users, self._kernels[0], -1)
        flat.baddbmm_(outer, columns.mT, beta=into.beta, alpha=into.alpha)
        if self._has_bias:
            into.add(into.target[:, self._bias], outer.sum(dim=2))
        return dx


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else size


class MaxPool(Layer):
    """Maxima over windows."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        self._window, self._stride = _pair(module.kernel_size), _pair(module.stride)
        self._padding, self._dilation = _pair(module.padding), _pair(module.dilation)
        self._ceil = module.ceil_mode

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        flat = x.flatten(0, 1)
        y, places = torch.ops.aten.max_pool2d_with_indices(
            flat, self._window, self._stride, self._padding, self._dilation, self._ceil
        )
        return y.unflatten(0, x.shape[:2]), (flat, places)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        if not need_dx:
            return None
        x, places = saved
        dx = torch.ops.aten.max_pool2d_with_indices_backward(
            dy.flatten(0, 1), x, self._window, self._stride, self._padding, self._dilation, self._ceil, places
        )
        return dx.unflatten(0, dy.shape[:2])
