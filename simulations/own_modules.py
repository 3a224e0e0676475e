"""Sixty modules of one's own, in which no engine looks, with made-up data: what users of a library
write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.training import Task, classification_task, next_token_task, regression_task, tagging_task

Step = Callable[[nn.Module, Tensor], Tensor]
TOKENS = 23
CLASSES = 4


def data(features: Tensor, labels: Tensor) -> InMemoryDataset:
    return InMemoryDataset(
        features, labels, [np.arange(len(labels))], ["u"], features, labels, CLASSES
    )


class Own(nn.Module):
    """A function of a module: nothing looks inside."""

    def __init__(self, inner: nn.Module, step: Step = lambda m, x: m(x) + 0.0) -> None:
        super().__init__()
        self.inner = inner
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """Its outputs."""
        return self.step(self.inner, x)


class Words(nn.Module):
    """The next token from embeddings by any layer."""

    def __init__(self, layer: nn.Module, padding: int | None = None, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8, padding_idx=padding)
        self.layer = layer
        self.head = nn.Linear(8, TOKENS)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position."""
        found = self.layer(self.embedding(tokens))
        return self.head(found[0] if isinstance(found, tuple) else found)


def of_numbers(module: nn.Module, features: int = 12) -> Task:
    """Numbers to four classes."""
    return classification_task(data(torch.randn(4, features), torch.arange(4)), module)


def texts() -> Iterator[tuple[str, Task]]:
    """Ten modules that look tokens up."""
    for name, module in {
        "words": Words(nn.Identity()),
        "padding": Words(nn.Tanh(), padding=0),
        "last padding": Words(nn.Identity(), padding=-1),
        "tied": Words(nn.Tanh(), tied=True),
        "norm": Words(nn.LayerNorm(8)),
        "LSTM": Words(nn.LSTM(8, 8, batch_first=True)),
        "GRU": Words(nn.GRU(8, 8, batch_first=True)),
        "RNN": Words(nn.RNN(8, 8, batch_first=True)),
        "transformer": Words(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        "mixing": Words(Own(nn.Linear(5, 5), lambda m, x: m(x.transpose(1, 2)).transpose(1, 2))),
    }.items():
        tokens = torch.randint(TOKENS, (6, 6))
        yield name, next_token_task(data(tokens[:, :-1], tokens[:, 1:]), module, TOKENS)


def owns() -> Iterator[tuple[str, Task]]:
    """Ten functions around a linear layer."""
    bias = nn.Parameter(torch.zeros(4))
    steps: dict[str, Step] = {
        "linear": lambda m, x: m(x) + 0.0,
        "residual": lambda m, x: m(x) + x[:, :4],
        "squares": lambda m, x: m(x * x),
        "scaled": lambda m, x: m(F.normalize(x, dim=1)),
        "sorted": lambda m, x: m(x.sort(dim=1).values),
        "sines": lambda m, x: m(x.sin()),
        "clamped": lambda m, x: m(x.clamp(-1, 1)),
        "softmax": lambda m, x: m(x.softmax(dim=1)),
        "outer": lambda m, x: m((x[:, :, None] * x[:, None]).mean(dim=2)),
        "bias": lambda m, x: m(x) + bias,
    }
    for name, step in steps.items():
        yield name, of_numbers(Own(nn.Linear(12, CLASSES), step))


#: Functions between two layers; parameters of layers of 17.
BETWEEN: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "GELU": nn.GELU,
    "GELU by tanh": lambda: nn.GELU("tanh"),
    "SiLU": nn.SiLU,
    "Softplus": nn.Softplus,
    "ELU": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "Mish": nn.Mish,
    "Hardswish": nn.Hardswish,
    "PReLU": nn.PReLU,
    "LayerNorm": lambda: nn.LayerNorm(17),
    "GroupNorm": lambda: nn.GroupNorm(1, 17),
    "exponential": lambda: torch.exp,
    "power": lambda: lambda x: (x * x + 0.1) ** 1.3,
    "logarithm": lambda: lambda x: (x * x + 1.0).log(),
    "quotient": lambda: lambda x: x / (1.0 + x.abs()),
    "cumulative": lambda: lambda x: x.cumsum(dim=1),
}
#: Inputs, hidden units and outputs with GELU between.
SIZES = (
    (33, 17, 5),
    (7, 28, 6),
    (29, 61, 5),
    (5, 3, 4),
    (50, 31, 11),
    (10, 17, 9),
    (64, 64, 10),
    (1, 29, 4),
)


def layered() -> Iterator[tuple[str, Task]]:
    """A function between two dense layers, and other sizes of these."""
    for name, make in BETWEEN.items():
        between = make()
        first = nn.Sequential(
            nn.Linear(33, 17), between if isinstance(between, nn.Module) else nn.Identity()
        )
        step = between if not isinstance(between, nn.Module) else lambda x: x
        inner = nn.Sequential(first, nn.Linear(17, CLASSES))
        yield name, of_numbers(Own(inner, lambda m, x, step=step: m[1](step(m[0](x)))), 33)
    for inputs, hidden, outputs in SIZES:
        inner = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
        yield f"{inputs}-{hidden}-{outputs}", of_numbers(Own(inner), inputs)


class Experts(nn.Module):
    """A mixture of dense layers, weighed by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 3)
        self.experts = nn.ModuleList(nn.Linear(12, CLASSES) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The mean by weights."""
        outputs = torch.stack([expert(x) for expert in self.experts], dim=2)
        return (outputs * self.gate(x).softmax(dim=1)[:, None]).sum(dim=2)


class Crossed(nn.Module):
    """Products of features with a linear function of them, as in a deep and cross network."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.Linear(12, 12)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Both side by side."""
        return self.head(torch.cat([x, x * self.cross(x) + x], dim=1))


class Scales(nn.Module):
    """Parameters that are functions of others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 12))
        self.scale = nn.Parameter(torch.ones(CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        """By rows of norm one, times positive scales."""
        return F.linear(x, F.normalize(self.weight, dim=1) * F.softplus(self.scale))


class Attending(nn.Module):
    """Attention over the features of an example as positions."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(3, 5)
        self.key = nn.Linear(3, 5)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Four positions of three numbers."""
        parts = x.view(-1, 4, 3)
        weights = (self.query(parts) @ self.key(parts).transpose(1, 2) / 5**0.5).softmax(dim=2)
        return self.head((weights @ parts).flatten(1))


def others() -> Iterator[tuple[str, Task]]:
    """Sixteen of other forms and kinds of tasks."""
    yield (
        "13-7",
        classification_task(
            InMemoryDataset(
                *(torch.randn(4, 13), torch.arange(4), [np.arange(4)], ["u"]),
                *(torch.randn(4, 13), torch.arange(4), 7),
            ),
            Own(nn.Linear(13, 7)),
        ),
    )
    yield "mixture of experts", of_numbers(Experts())
    yield "cross network", of_numbers(Crossed())
    yield "scales of weights", of_numbers(Scales())
    yield "attention", of_numbers(Attending())
    yield (
        "bilinear",
        of_numbers(Own(nn.Bilinear(6, 6, 4), lambda m, x: m(x[:, :6], x[:, 6:].contiguous()))),
    )
    yield "gated", of_numbers(Own(nn.Linear(12, 2 * CLASSES), lambda m, x: F.glu(m(x), dim=1)))
    yield (
        "logarithms",
        of_numbers(Own(nn.Linear(12, CLASSES), lambda m, x: m(x).log_softmax(dim=1) + 0.0)),
    )
    yield "by hand", of_numbers(Own(nn.Linear(12, CLASSES), lambda m, x: x @ m.weight.t() * 2.0))
    yield (
        "einsum",
        of_numbers(Own(nn.Linear(12, 4), lambda m, x: torch.einsum("bi,oi->bo", x, m.weight))),
    )
    yield "shared", of_numbers(Own(nn.Linear(12, 12), lambda m, x: m(m(x).tanh())[:, :CLASSES]))
    narrow = nn.Sequential(nn.Linear(12, 3), nn.SiLU(), nn.Linear(3, CLASSES))
    yield "bottleneck", of_numbers(Own(narrow))
    values = torch.randn(6, 9)
    yield "regression", regression_task(data(values, values.sum(dim=1)), Own(nn.Linear(9, 1)))
    curved = nn.Sequential(nn.Linear(9, 15), nn.SiLU(), nn.Linear(15, 1))
    yield "curved regression", regression_task(data(values, values.sum(dim=1)), Own(curved))
    positions = torch.randn(6, 7, 6)
    tags = torch.randint(CLASSES, (6, 7))
    yield "tagging", tagging_task(data(positions, tags), Own(nn.Linear(6, CLASSES)))
    context = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, CLASSES))
    mean: Step = lambda m, x: m(x + x.mean(dim=1, keepdim=True))  # noqa: E731
    yield "tagging in context", tagging_task(data(positions, tags), Own(context, mean))


def own_modules() -> list[tuple[str, Task]]:
    """All sixty, by name; their parameters follow from torch's seed."""
    return [*texts(), *owns(), *layered(), *others()]
