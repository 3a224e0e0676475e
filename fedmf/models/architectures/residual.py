"""Residual networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedmf.models.architectures.architecture import Architecture, check_image
from fedmf.models.parts import Residual
from fedmf.values import check_whole


@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 with GroupNorm in place of BatchNorm, whose statistics no clipping covers.

    With stem "imagenet" 11,689,512 parameters for 1,000 classes, as published (a GroupNorm has as many as a
    BatchNorm), and 11,181,642 for 10; with stem "cifar" 11,173,962 for 10.

    Args:
        stem: "cifar" (3×3, no pooling: for images of 32 pixels), or "imagenet" (7×7, stride 2, pooling).
        groups: of each GroupNorm; it divides 64. pfl has 32.

    References:
        He et al. (2016), "Deep Residual Learning for Image Recognition", table 1; Wu, He (2018), "Group
        Normalization"; benchmarks/model/pytorch/module_modification.py of apple/pfl-research.
    """

    kind: ClassVar[str] = "resnet18"
    stem: Literal["cifar", "imagenet"] = "cifar"
    groups: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("groups", self.groups, 1, 64)
        if 64 % self.groups:
            raise ValueError(f"groups must divide 64, the narrowest layer's channels; got {self.groups}.")

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`; both sides of an image are at least 8."""
        channels, _, _ = check_image(self.kind, shape, 8)
        if self.stem == "cifar":
            layers: list[nn.Module] = [*self._convolution(channels, 64, 3, 1), nn.ReLU()]
        else:
            layers = [*self._convolution(channels, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
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
        return convolution, nn.GroupNorm(self.groups, width)
