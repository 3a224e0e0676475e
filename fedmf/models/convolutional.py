"""Convolutional networks for small images."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmf.models.architecture import Architecture, Layers, Residual, check_image
from fedmf.models.mlp import Mlp, dense


@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 with GroupNorm, because clipping cannot cover the statistics of BatchNorm.

    With the 3×3 stem for images of 32 pixels: 11,173,962 parameters for 10 classes.

    References:
        He et al. (2016), "Deep Residual Learning for Image Recognition", table 1; Wu, He (2018),
        "Group Normalization"; benchmarks/model/pytorch/module_modification.py of
        apple/pfl-research.
    """

    kind: ClassVar[str] = "resnet18"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        channels, _, _ = check_image(self.kind, shape, 8)
        layers: list[nn.Module] = [*self._convolution(channels, 64, 3, 1), nn.ReLU()]
        channels = 64
        for width, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for stride in (first_stride, 1):
                layers += [self._block(channels, width, stride), nn.ReLU()]
                channels = width
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs)
        )

    def _block(self, channels: int, width: int, stride: int) -> nn.Module:
        """Return a residual block of two convolutions; a change of shape needs a third one."""
        first = self._convolution(channels, width, 3, stride)
        second = self._convolution(width, width, 3, 1)
        body = nn.Sequential(*first, nn.ReLU(), *second)
        if (channels, stride) == (width, 1):
            return Residual(body)
        return Residual(body, nn.Sequential(*self._convolution(channels, width, 1, stride)))

    def _convolution(
        self, channels: int, width: int, side: int, stride: int
    ) -> tuple[nn.Module, nn.Module]:
        """Return a convolution and the normalization of its outputs."""
        convolution = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
        return convolution, nn.GroupNorm(32, width)


@dataclass(frozen=True)
class Cnn(Mlp):
    """Two 3×3 convolutions (16, 32 channels; padding 1) with ReLU and 2×2 pooling, then an `Mlp`.

    Args:
        hidden_units: widths of the hidden dense layers.

    >>> sum(p.numel() for p in Cnn(hidden_units=(128,)).build((1, 28, 28), 10).parameters())
    206922
    """

    kind: ClassVar[str] = "cnn"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        channels, height, width = check_image(self.kind, shape, 4)
        layers: Layers = []
        for i, filters in enumerate((16, 32)):
            layers += [
                (f"convolution{i}", nn.Conv2d(channels, filters, 3, padding=1)),
                (f"activation{i}", nn.ReLU()),
                (f"pool{i}", nn.MaxPool2d(2)),
            ]
            channels = filters
        inputs = channels * (height // 4) * (width // 4)
        layers += [("flatten", nn.Flatten()), *dense(inputs, self.hidden_units, outputs)]
        return nn.Sequential(OrderedDict(layers))
