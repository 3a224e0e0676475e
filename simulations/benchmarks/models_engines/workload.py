"""The workloads of `models.py`: sequence models and a residual network, their data and numbers.

Needs torch and `fedmf.models`, which is torch alone. Cohorts of 20 users in turn out of 100, one local epoch,
learning rate 0.1, clip norm 1, noise multiplier 1; 2 warm-up rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmf.models import Positions, Recurrent, Residual, SelfAttention

USERS, COHORT = 100, 20
LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.1, 1.0, 1.0, 1e-5
WARM_UP, ROUNDS = 2, 4


@dataclass(frozen=True)
class Workload:
    """A model and the examples of its users.

    Args:
        text: what is said of it.
        build: makes the module.
        examples: of each user.
        batch: examples in a step.
        classes: outputs of the model for an example, or for a position of a text.
        positions: tokens in a text; 0 for images of 3×32×32.
    """

    text: str
    build: Callable[[], nn.Module]
    examples: int
    batch: int
    classes: int
    positions: int = 0

    def made(self) -> nn.Module:
        """The module with its initial parameters."""
        torch.manual_seed(0)
        return self.build()

    def data(self, users: int = USERS) -> tuple[Tensor, Tensor]:
        """Features and labels; user u owns as many rows as it has examples, one user after another."""
        generator = torch.Generator().manual_seed(1)
        count = users * self.examples
        if self.positions:
            uniform = torch.rand(count, self.positions + 1, generator=generator)
            texts = 1 + ((self.classes - 1) * uniform**3).long()  # some tokens are common, as in texts
            return texts[:, :-1].contiguous(), texts[:, 1:].contiguous()
        images = torch.randn(count, 3, 32, 32, generator=generator)
        return images, torch.randint(self.classes, (count,), generator=generator)


def lstm(vocabulary: int, embedding: int, hidden: int) -> nn.Module:
    """Embedding, LSTM, dense layer."""
    return nn.Sequential(
        nn.Embedding(vocabulary, embedding, padding_idx=0),
        Recurrent(nn.LSTM(embedding, hidden, batch_first=True)),
        nn.Linear(hidden, vocabulary),
    )


def transformer(
    vocabulary: int, positions: int, width: int, layers: int, heads: int, inner: int
) -> nn.Module:
    """Blocks of causal attention and two dense layers, norms before each."""
    blocks: list[nn.Module] = []
    for _ in range(layers):
        dense = [nn.LayerNorm(width), nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)]
        blocks += [
            Residual(nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads, causal=True))),
            Residual(nn.Sequential(*dense)),
        ]
    return nn.Sequential(
        *(nn.Embedding(vocabulary, width, padding_idx=0), Positions(positions, width), *blocks),
        *(nn.LayerNorm(width), nn.Linear(width, vocabulary)),
    )


def residual_network(widths: tuple[int, ...], classes: int) -> nn.Module:
    """One residual block a width, GroupNorm, images halved from one to the next."""

    def convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(8, outputs),
        ]

    layers: list[nn.Module] = [*convolution(3, widths[0], 1), nn.ReLU()]
    inputs = widths[0]
    for i, width in enumerate(widths):
        stride = 1 if i == 0 else 2
        body = nn.Sequential(*convolution(inputs, width, stride), nn.ReLU(), *convolution(width, width, 1))
        if i == 0:
            shortcut = None
        else:
            first = nn.Conv2d(inputs, width, 1, stride=stride, bias=False)
            shortcut = nn.Sequential(first, nn.GroupNorm(8, width))
        layers += [Residual(body, shortcut), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


WORKLOADS = {
    "lstm-small": Workload(
        "LSTM language model, 256 tokens, 32-128, T 32", lambda: lstm(256, 32, 128), 32, 8, 256, 32
    ),
    "lstm": Workload(
        "LSTM language model, 1,000 tokens, 96-256, T 20", lambda: lstm(1000, 96, 256), 32, 16, 1000, 20
    ),
    "lstm-large": Workload(
        "LSTM language model, 1,000 tokens, 96-670, T 20", lambda: lstm(1000, 96, 670), 32, 16, 1000, 20
    ),
    "transformer": Workload(
        "transformer, 1,000 tokens, 3 layers of 96, 8 heads, 1,536 inside, T 20",
        lambda: transformer(1000, 20, 96, 3, 8, 1536),
        *(32, 16, 1000, 20),
    ),
    "resnet-gn": Workload(
        "residual network with GroupNorm, 16-32-64 channels, 32×32",
        lambda: residual_network((16, 32, 64), 10),
        *(20, 10, 10),
    ),
}
