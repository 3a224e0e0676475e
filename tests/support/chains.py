"""Chains of layers with shapes drawn at random, and what plain torch makes of them in 64 bits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmf.models import (
    LastPosition,
    MeanPosition,
    Positions,
    Recurrent,
    Residual,
    SelfAttention,
)
from fedmf.training.gradients import Batch


@dataclass(frozen=True)
class Shapes:
    """Sizes of a chain, drawn from a seed."""

    tokens: int
    positions: int
    inputs: int
    hidden: int
    heads: int
    outputs: int
    side: int

    @classmethod
    def drawn(cls, seed: int) -> Shapes:
        """Different ones for each seed, small and odd."""
        draw = random.Random(seed)
        heads = draw.randint(1, 3)
        return cls(
            tokens=draw.randint(5, 23),
            positions=draw.randint(1, 7),
            inputs=heads * draw.randint(4, 6),
            hidden=draw.randint(1, 9),
            heads=heads,
            outputs=draw.randint(2, 6),
            side=draw.randint(4, 7),
        )


def embedding(s: Shapes, padding: int | None = 0) -> nn.Module:
    return nn.Embedding(s.tokens, s.inputs, padding_idx=padding)


def language_model(s: Shapes, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM, bias: bool = True) -> nn.Module:
    layer = kind(s.inputs, s.hidden, batch_first=True, bias=bias)
    return nn.Sequential(embedding(s), Recurrent(layer), nn.Linear(s.hidden, s.outputs))


def block(s: Shapes, causal: bool) -> nn.Module:
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(s.inputs), SelfAttention(s.inputs, s.heads, causal))),
        Residual(
            nn.Sequential(
                *(nn.LayerNorm(s.inputs), nn.Linear(s.inputs, s.hidden), nn.ReLU(), nn.Dropout(0.0)),
                nn.Linear(s.hidden, s.inputs),
            )
        ),
    )


def transformer(s: Shapes, causal: bool = True) -> nn.Module:
    return nn.Sequential(
        *(embedding(s, None), Positions(s.positions + 2, s.inputs), nn.Identity(), block(s, causal)),
        *(block(s, causal), nn.LayerNorm(s.inputs), nn.Linear(s.inputs, s.outputs, bias=False)),
    )


def tied(s: Shapes, bias: bool) -> nn.Module:
    first = nn.Embedding(s.tokens, s.inputs, padding_idx=1)
    recurrent = Recurrent(nn.LSTM(s.inputs, s.inputs, batch_first=True))
    last = nn.Linear(s.inputs, s.tokens, bias=bias)
    last.weight = first.weight
    return nn.Sequential(first, recurrent, last)


def reused(s: Shapes) -> nn.Module:
    same, norm = nn.Linear(s.inputs, s.inputs), nn.LayerNorm(s.inputs)
    return nn.Sequential(embedding(s), same, norm, nn.Tanh(), same, norm, nn.Linear(s.inputs, s.outputs))


def residual_network(s: Shapes) -> nn.Module:
    body = nn.Sequential(
        *(nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.GroupNorm(3, 6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.GroupNorm(2, 6)),
    )
    shortcut = nn.Sequential(nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.GroupNorm(1, 6))
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), Residual(body, shortcut), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, s.outputs)),
    )


def frozen(module: nn.Module, names: Callable[[str], bool]) -> nn.Module:
    """The module with the parameters of these names frozen."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not names(name))
    return module


class LowRank(nn.Module):
    """Computes what peft's `Linear` with one adapter does, and has its parts and its name.

    Args:
        base: frozen.
        rank: columns of A.
        scaling: s.
    """

    def __init__(self, base: nn.Linear, rank: int, scaling: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        up = nn.Linear(rank, base.out_features, bias=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": up})
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.scaling, self.active_adapters = {"default": scaling}, ["default"]
        self.merged = self.disable_adapters = self.fan_in_fan_out = False

    def forward(self, x: Tensor) -> Tensor:
        low_rank = self.lora_B["default"](self.lora_A["default"](x))
        return self.base_layer(x) + self.scaling["default"] * low_rank


LowRank.__module__, LowRank.__qualname__ = "peft.tuners.lora.layer", "Linear"


def adapted(s: Shapes) -> nn.Module:
    tokens, recurrent = embedding(s), Recurrent(nn.GRU(s.inputs, s.hidden, batch_first=True))
    attention = SelfAttention(s.inputs, s.heads, causal=True).requires_grad_(False)
    attention.inputs = LowRank(attention.inputs, 3, 0.4)
    return nn.Sequential(
        *(tokens.requires_grad_(False), attention),
        *(LowRank(nn.Linear(s.inputs, s.inputs), 2, 0.7), nn.Tanh()),
        *(recurrent.requires_grad_(False), LowRank(nn.Linear(s.hidden, s.outputs, bias=False), 1, 2.0)),
    )


TEXTS: dict[str, Callable[[Shapes], nn.Module]] = {
    "embedding": lambda s: nn.Sequential(embedding(s), nn.Linear(s.inputs, s.outputs)),
    "embedding alone": lambda s: embedding(s, None),
    "lstm": language_model,
    "lstm without bias": lambda s: language_model(s, bias=False),
    "gru": lambda s: language_model(s, nn.GRU),
    "gru without bias": lambda s: language_model(s, nn.GRU, bias=False),
    "two recurrences": lambda s: nn.Sequential(
        *(embedding(s), Recurrent(nn.GRU(s.inputs, s.hidden, batch_first=True)), nn.ReLU()),
        *(Recurrent(nn.LSTM(s.hidden, s.outputs, batch_first=True)), LastPosition()),
    ),
    "mean": lambda s: nn.Sequential(
        embedding(s), Residual(nn.Linear(s.inputs, s.inputs)), MeanPosition(), nn.LayerNorm(s.inputs)
    ),
    "attention": lambda s: nn.Sequential(embedding(s), SelfAttention(s.inputs, s.heads, causal=False)),
    "causal attention": lambda s: nn.Sequential(embedding(s), SelfAttention(s.inputs, s.heads, causal=True)),
    "transformer": transformer,
    "encoder": lambda s: nn.Sequential(transformer(s, causal=False), MeanPosition()),
    "norms": lambda s: nn.Sequential(
        *(embedding(s), nn.LayerNorm(s.inputs, elementwise_affine=False), nn.Linear(s.inputs, 6)),
        *(
            nn.LayerNorm((s.positions, 6), bias=False),
            nn.Flatten(),
            nn.GroupNorm(s.positions, 6 * s.positions),
        ),
    ),
    "tied": lambda s: tied(s, bias=True),
    "tied without bias": lambda s: tied(s, bias=False),
    "used twice": reused,
    "frozen embedding": lambda s: frozen(language_model(s), lambda name: name.startswith("0.")),
    "frozen below": lambda s: frozen(transformer(s), lambda name: int(name[0]) < 4),
    "frozen between": lambda s: frozen(transformer(s), lambda name: name[0] == "4"),
    "frozen weights": lambda s: frozen(
        language_model(s), lambda name: "weight_ih" in name or "bias_hh" in name
    ),
    "frozen biases": lambda s: frozen(language_model(s, nn.GRU), lambda name: "bias" in name),
    "frozen norms": lambda s: frozen(block_of_texts(s), lambda name: "norm" in name),
    "adapted": adapted,
    "frozen tied": lambda s: frozen(tied(s, bias=True), lambda name: name == "0.weight"),
}


def block_of_texts(s: Shapes) -> nn.Module:
    return nn.Sequential(embedding(s), block(s, causal=True))


IMAGES: dict[str, Callable[[Shapes], nn.Module]] = {
    "residual network": residual_network,
    "frozen convolutions": lambda s: frozen(
        residual_network(s), lambda name: name.startswith(("0.", "3.body.0"))
    ),
    "frozen head": lambda s: frozen(residual_network(s), lambda name: name.startswith("7.")),
}
CHAINS = TEXTS | IMAGES


@dataclass(frozen=True, eq=False)
class Problem:
    """A chain, the users' trained parameters and one batch for each step."""

    module: nn.Module
    rows: Tensor
    batches: list[Batch]

    @classmethod
    def drawn(cls, name: str, seed: int, users: int = 3, width: int = 4, steps: int = 3) -> Problem:
        """In 64 bits; the last example of the first user is padding."""
        shapes, generator = Shapes.drawn(seed), torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = CHAINS[name](shapes).double()
        start = torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])
        rows = start + 0.1 * torch.randn(users, start.numel(), generator=generator, dtype=torch.float64)
        batches = []
        for _ in range(steps):
            if name in TEXTS:
                features = torch.randint(shapes.tokens, (users, width, shapes.positions), generator=generator)
            else:
                size = (users, width, 2, shapes.side, shapes.side)
                features = torch.randn(size, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                outputs = module(features[0])
            labels = torch.randn(users, *outputs.shape, generator=generator, dtype=torch.float64)
            weights = torch.rand(users, width, generator=generator, dtype=torch.float64)
            weights[0, -1] = 0.0
            batches.append(Batch(features, labels, weights))
        return cls(module, rows, batches)

    def by_torch(self, rate: float, momentum: float, proximal: float) -> Tensor:
        """Every user's parameters after the steps, by autograd and torch.optim.SGD."""
        trained = []
        for u, row in enumerate(self.rows):
            module = copy.deepcopy(self.module)
            parameters = [p for p in module.parameters() if p.requires_grad]
            nn.utils.vector_to_parameters(row.clone(), parameters)
            optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
            for batch in self.batches:
                optimizer.zero_grad()
                loss = (squared(module(batch.features[u]), batch.labels[u]) * batch.weights[u]).sum()
                moved = nn.utils.parameters_to_vector(parameters) - row
                (loss + proximal / 2 * moved.square().sum()).backward()
                optimizer.step()
            trained.append(nn.utils.parameters_to_vector(parameters).detach())
        return torch.stack(trained)


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example losses for outputs of any shape."""
    return (outputs - labels).square().flatten(1).sum(dim=1)
