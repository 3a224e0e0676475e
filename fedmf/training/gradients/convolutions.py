"""Convolution and pooling of which every user has its own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Places, Weight


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
        places: where its parameters stand.
    """

    def __init__(self, module: nn.Conv2d, places: Places) -> None:
        assert not isinstance(module.padding, str)
        self._stride, self._padding, self._dilation = module.stride, module.padding, module.dilation
        self._kernels = module.weight.shape
        self._weight, self._bias = places.of(module.weight), places.maybe(module.bias)

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        yield self._weight
        if self._bias is not None:
            yield self._bias


class ConvolutionByUser(_Convolution):
    """One user after another with the library's convolution: the fastest on processors.

    A convolution of many channels does enough arithmetic for one call; a grouped one over users is slower,
    and what users of a group save for the way back would not stay in the processor's cache.
    """

    @property
    def one_by_one(self) -> bool:
        """See `Layer.one_by_one`."""
        return True

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        inputs, kernels = channels_last(x[0]), channels_last(self._weight.of(parameters)[0])
        bias = None if self._bias is None else self._bias.of(parameters)[0]
        y = F.conv2d(inputs, kernels, bias, self._stride, self._padding, self._dilation)
        return y[None], (inputs, kernels)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        of_bias = self._bias is not None and self._bias.trainable
        dx, kernels, bias = torch.ops.aten.convolution_backward(
            channels_last(dy[0]),
            *saved,
            [self._kernels[0]],
            self._stride,
            self._padding,
            self._dilation,
            False,
            [0, 0],
            1,
            [need_dx, self._weight.trainable, of_bias],
        )
        if self._weight.trainable:
            self._weight.add(into, kernels[None])
        if self._bias is not None and of_bias:
            self._bias.add(into, bias[None])
        return dx[None] if need_dx else None


class ConvolutionByProducts(_Convolution):
    """All users in one batched matrix product of unfolded patches: for devices with many small cores."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        columns, size = self._columns(x)
        kernels = self._weight.of(parameters).flatten(2)
        if self._bias is not None:
            y = torch.baddbmm(self._bias.of(parameters)[..., None], kernels, columns)
        else:
            y = torch.bmm(kernels, columns)
        return y.unflatten(2, (x.shape[1], *size)).transpose(1, 2), (x.shape, columns)

    def _columns(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patches, shape (users, channels · kernel, batch · pixels), and the height and width of outputs.

        One copy of a view: torch's `unfold` starts a kernel on the GPU for every image.
        """
        users, batch, channels, *sides = x.shape
        (up, left), (tall, wide) = self._padding, self._kernels[2:]
        padded = F.pad(x, (left, left, up, up)).contiguous()
        height, width = (
            (length + 2 * p - d * (k - 1) - 1) // s + 1
            for length, p, d, k, s in zip(
                sides, self._padding, self._dilation, (tall, wide), self._stride, strict=True
            )
        )
        of_user, of_image, of_channel, down, across = padded.stride()
        patches = padded.as_strided(
            (users, channels, tall, wide, batch, height, width),
            (
                *(of_user, of_channel, down * self._dilation[0], across * self._dilation[1]),
                *(of_image, down * self._stride[0], across * self._stride[1]),
            ),
        )
        return patches.reshape(users, channels * tall * wide, batch * height * width), (height, width)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        shape, columns = saved
        users, batch = shape[:2]
        outer = dy.transpose(1, 2).flatten(2)
        dx = None
        if need_dx:
            patches = torch.bmm(self._weight.of(into.parameters).flatten(2).mT, outer)
            patches = patches.unflatten(2, (batch, -1)).transpose(1, 2).flatten(0, 1)
            dx = F.fold(
                patches, shape[3:], self._kernels[2:], self._dilation, self._padding, self._stride
            ).unflatten(0, (users, batch))
        if self._weight.trainable:
            self._weight.add_product(into, outer, columns.mT)
        if self._bias is not None and self._bias.trainable:
            self._bias.add(into, outer.sum(dim=2))
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
