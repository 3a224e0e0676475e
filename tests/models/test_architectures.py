"""Models by name: sizes as published, shapes, seeds, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedmf.models import MODELS, Architecture, FlatModel, Logistic, Mlp
from fedmf.models.attention import Transformer
from fedmf.models.convolutional import Cnn, ResNet18
from fedmf.models.recurrent import Lstm

WORDS = 10_004


def parameters(module: nn.Module) -> int:
    """How many; a shared one counts once."""
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("value", "shape", "outputs", "size"),
    [
        (Mlp(hidden_units=(128, 64)), (784,), 10, 109_386),
        (Cnn(hidden_units=()), (3, 32, 32), 10, 16 * 27 + 16 + 32 * 144 + 32 + 2048 * 10 + 10),
        (Logistic(), (3, 2, 2), 10, 130),
        (ResNet18(), (3, 32, 32), 10, 11_173_962),  # the usual stem for CIFAR-10
    ],
)
def test_models_of_numbers_have_the_published_sizes(
    value: Architecture, shape: tuple[int, ...], outputs: int, size: int
) -> None:
    module = value.build(shape, outputs)
    assert parameters(module) == FlatModel(module).dimension == size
    assert module(torch.zeros(2, *shape)).shape == (2, outputs)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        # Reddi et al. (2021) in Keras: 4,050,748, whose LSTM has one bias of 4·670; torch's has
        # two.
        (Lstm(embedding=96, hidden=670, dense_units=96), 4_050_748 + 4 * 670),
        # Embedding and output; per block four W×W with biases, W×F and F×W with biases, two norms;
        # a norm.
        (
            Transformer(width=96, layers=3, heads=8, feed_forward=1536),
            WORDS * (2 * 96 + 1) + 3 * (4 * 96 * 97 + 2 * 96 * 1536 + 1536 + 96 + 4 * 96) + 2 * 96,
        ),
    ],
)
def test_models_of_tokens_have_the_published_sizes(value: Architecture, size: int) -> None:
    module = value.build((12,), WORDS, WORDS)
    assert parameters(module) == size
    assert module(torch.randint(WORDS, (2, 12))).shape == (2, 12, WORDS)


@pytest.mark.parametrize("name", MODELS)
def test_initial_models_depend_on_the_seed_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    kind = MODELS[name]
    arguments: Any = ((1, 8, 8), 3, 0)
    if kind.takes_tokens:
        arguments = ((6,), 9, 9)
    first = FlatModel(kind().build(*arguments, seed=1)).initial()
    again = FlatModel(kind().build(*arguments, seed=1)).initial()
    other = FlatModel(kind().build(*arguments, seed=2)).initial()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.isfinite().all()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(64,), (1, 3, 8)])
@pytest.mark.parametrize("value", [Cnn(), ResNet18()])
def test_convolutions_need_images(value: Architecture, shape: tuple[int, ...]) -> None:
    needs = rf"model {value.kind} needs examples of shape \(channels, height, width\)"
    with pytest.raises(ValueError, match=needs):
        value.build(shape, 3)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_numbers_are_told_apart(name: str) -> None:
    value = MODELS[name]()
    if value.takes_tokens:
        with pytest.raises(
            ValueError, match=rf"model {name} needs examples of token numbers; got numbers"
        ):
            value.build((8,), 3)
        with pytest.raises(
            ValueError, match=rf"{name} needs examples of shape \(positions,\); got \(2, 8\)"
        ):
            value.build((2, 8), 3, 5)
    else:
        with pytest.raises(
            ValueError, match=rf"model {name} needs examples of numbers; got tokens below 5"
        ):
            value.build((1, 8, 8), 3, 5)


SMALL = [
    Lstm(embedding=6, hidden=5, layers=2),
    Transformer(width=8, heads=2, feed_forward=12),
]


@pytest.mark.parametrize("value", SMALL)
def test_no_output_depends_on_later_tokens(value: Architecture) -> None:
    module = value.build((6,), 11, 11).eval()
    tokens = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    first = module(tokens)
    second = module(other)
    assert torch.allclose(first[:, :4], second[:, :4], atol=1e-6)
    assert not torch.allclose(first[:, 4], second[:, 4], atol=1e-5)
