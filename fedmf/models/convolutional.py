"""Convolutional networks for small images."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn

from fedmf.models.architecture import Architecture, Layers, Residual, check_image, normal_
from fedmf.models.dense import Mlp, dense
from fedmf.values import Field


@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 with GroupNorm, because clipping cannot cover the statistics of BatchNorm.

    With the 3×3 stem for images of 32 pixels: 11,173,962 parameters for 10 classes.

    References:
        He et al. (2016), "Deep Residual Learning for Image Recognition", table 1; Wu, He (2018), "Group
        Normalization"; benchmarks/model/pytorch/module_modification.py of apple/pfl-research.
    """

    kind: ClassVar[str] = "resnet18"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`; both sides of an image are at least 8."""
        channels, _, _ = check_image(self.kind, shape, 8)
        layers: list[nn.Module] = [*self._convolution(channels, 64, 3, 1), nn.ReLU()]
        channels = 64
        for width in (64, 128, 256, 512):
            for stride in (1 if width == 64 else 2, 1):
                layers += [self._block(channels, width, stride), nn.ReLU()]
                channels = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))

    def _block(self, channels: int, width: int, stride: int) -> nn.Module:
        first, second = self._convolution(channels, width, 3, stride), self._convolution(width, width, 3, 1)
        body = nn.Sequential(*first, nn.ReLU(), *second)
        if (channels, stride) == (width, 1):
            return Residual(body)
        return Residual(body, nn.Sequential(*self._convolution(channels, width, 1, stride)))

    def _convolution(self, channels: int, width: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
        convolution = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
        return convolution, nn.GroupNorm(32, width)


@dataclass(frozen=True)
class Cnn(Mlp):
    """Two 3×3 convolutions (16 and 32 channels, padding 1), each with ReLU and 2×2 pooling, then an `Mlp`.

    Args:
        hidden_units: widths of the hidden dense layers.

    >>> sum(p.numel() for p in Cnn(hidden_units=(128,)).build((1, 28, 28), 10).parameters())
    206922
    """

    kind: ClassVar[str] = "cnn"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`; both sides of an image are at least 4."""
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


@dataclass(frozen=True)
class PflCnn(Architecture):
    """pfl's network for CIFAR-10 and FEMNIST: 3×3 convolutions to 32 and 64 channels without padding, 2×2
    pooling, 128 dense units.

    1,626,442 parameters for CIFAR-10, 1,206,590 for FEMNIST's 62 classes, as pfl's. Without its dropout of
    0.25 and 0.5: passes here are functions of the examples alone.

    References:
        Granqvist et al. (2024), "pfl-research", with benchmarks/model/pytorch/cnn.py of apple/pfl-research;
        for FEMNIST the network of Reddi et al. (2021), "Adaptive Federated Optimization".

    >>> sum(p.numel() for p in PflCnn().build((3, 32, 32), 10).parameters())
    1626442
    """

    kind: ClassVar[str] = "pfl-cnn"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`; both sides of an image are at least 6."""
        channels, height, width = check_image(self.kind, shape, 6)
        module = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Linear(128, outputs),
        )
        for layer in module:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return module


@dataclass(frozen=True)
class Vgg(Architecture):
    """Three blocks of two 3×3 convolutions (32, 64, 128 channels) with 2×2 pooling, and a dense layer.

    550,570 parameters for CIFAR-10: the "3-block VGG" of γ-BIFR, which takes it from Kairouz et al. The CNN
    "(0.3M)" of λCGD is not described; the same blocks with ``dense_units`` 0 have 288,298.

    References:
        Kairouz et al. (2021), "Practical and Private (Deep) Learning Without Sampling or Shuffling", with
        nn.py of google-research/DP-FTRL; Papernot et al. (2021), "Tempered Sigmoid Activations".

    >>> sum(p.numel() for p in Vgg().build((3, 32, 32), 10).parameters())
    550570
    """

    kind: ClassVar[str] = "vgg"
    dense_units: Annotated[int, Field("units of the dense layer; 0: global average pooling", ge=0)] = 128

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`; both sides of an image are at least 8."""
        channels, height, width = check_image(self.kind, shape, 8)
        layers: list[nn.Module] = []
        for filters in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
                channels = filters
            layers.append(nn.MaxPool2d(2))
        if self.dense_units:
            inputs = channels * (height // 8) * (width // 8)
            head = [nn.Linear(inputs, self.dense_units), nn.Tanh()]
            layers += [nn.Flatten(), *head, nn.Linear(self.dense_units, outputs)]
        else:
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)]
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                fan_in = layer.weight[0].numel()
                fans = fan_in + layer.weight.shape[0] if isinstance(layer, nn.Linear) else 2 * fan_in
                normal_(layer.weight, (2 / fans) ** 0.5)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)
