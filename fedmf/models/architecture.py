"""The base of models by name: frozen fields from which a module is built.

A `[model]` table of a configuration is one of these values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from fedmf.values import Field, Value

#: Layers of a chain by name.
Layers = list[tuple[str, nn.Module]]


@dataclass(frozen=True)
class Architecture(Value, ABC):
    """A model by name; abstract.

    Its initial parameters are a function of its fields and of the structure of examples.

    Attributes:
        takes_tokens: whether examples are token numbers, rather than numbers as such.

    Raises:
        ValueError: a value is out of range.
    """

    takes_tokens: ClassVar[bool] = False

    initial: Annotated[
        str, Field("public file (.safetensors or .pt) of initial parameters, read by the server")
    ] = ""

    def build(
        self, shape: tuple[int, ...], outputs: int, vocabulary: int = 0, seed: int = 0
    ) -> nn.Module:
        """Return the module, freshly initialized; no global random generator moves.

        Args:
            shape: shape of one example.
            outputs: length of the output for one example, or for one of its positions.
            vocabulary: number of tokens if the entries of an example are token numbers; 0 if they
                are numbers as such.
            seed: public seed of the initial parameters.

        Raises:
            ValueError: the model cannot take such examples.
        """
        if self.takes_tokens and vocabulary < 1:
            raise ValueError(
                f"model {self.kind} needs examples of token numbers; got numbers of shape"
                f" {tuple(shape)}. Use text data, or another model."
            )
        if vocabulary and not self.takes_tokens:
            raise ValueError(
                f"model {self.kind} needs examples of numbers; got tokens below {vocabulary}. Use a"
                " token model, such as lstm or transformer."
            )
        if self.takes_tokens and len(shape) != 1:
            raise ValueError(
                f"model {self.kind} needs examples of shape (positions,); got {tuple(shape)}."
            )
        with initialized_from(seed):
            return self.module(shape, outputs, vocabulary)

    @abstractmethod
    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """Return the module for `build`; torch's generator stands at the seed."""


@contextmanager
def initialized_from(seed: int) -> Iterator[None]:
    """Initialize the layers that are created inside from a public seed.

    No global generator moves.
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed every GPU's generator.
        torch.default_generator.manual_seed(seed)
        yield


def check_image(kind: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image with sides of at least ``least``.

    Raises:
        ValueError: examples are not such images.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model {kind} needs examples of shape (channels, height, width) with sides of at least"
            f" {least}; got {tuple(shape)}. Give the data an input_shape, or use another model."
        )
    return shape


class Residual(nn.Module):
    """x ↦ shortcut(x) + body(x).

    Args:
        body: keeps the shape, or changes it as the shortcut does.
        shortcut: the identity if omitted.
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return shortcut(x) + body(x)."""
        return self.shortcut(x) + self.body(x)
