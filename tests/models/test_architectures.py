"""Models by name: sizes as published, shapes, seeds, and what they refuse."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from fedmf.models import MODELS, Architecture, FlatModel, Logistic, Mlp
from fedmf.models.architecture import initialised_from, normal_
from fedmf.models.attention import Bert, PflTransformer, Transformer
from fedmf.models.convolutional import Cnn, PflCnn, ResNet18, Vgg
from fedmf.models.recurrent import Lstm, PflLstm, StackOverflowLstm

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
        (Vgg(dense_units=0), (3, 32, 32), 10, 288_298),
        # pfl counts (3·3·c·32 + 32) + (3·3·32·64 + 64) + (s²·64·128 + 128) + (128·o + o) in its own test.
        (PflCnn(), (3, 32, 32), 10, 1_626_442),
        (PflCnn(), (1, 28, 28), 62, 1_206_590),  # also Reddi et al. (2021)
        (Vgg(), (3, 32, 32), 10, 550_570),  # vgg128 of google-research/DP-FTRL
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
    ("value", "outputs", "vocabulary", "size"),
    [
        # Layer by layer in Keras 4,050,748, whose LSTM has one bias of 4·670; torch's has two.
        (StackOverflowLstm(), WORDS, WORDS, 4_050_748 + 4 * 670),
        (PflTransformer(), WORDS, WORDS, 1_962_912),
        # pfl's own test counts what its LSTM has; 96 and 256 are its configuration's.
        (PflLstm(), WORDS, WORDS, 96 * WORDS + 4 * 256 * (96 + 256) + 8 * 256 + 256 * 96 + 96),
        # BERT-tiny layer by layer has 4,385,920; the output is ours, its kinds of segments are not.
        (Bert(), 2, 30_522, 4_385_920 + 2 * 128 + 2 - 2 * 128),
    ],
)
def test_models_of_tokens_have_the_published_sizes(
    value: Architecture, outputs: int, vocabulary: int, size: int
) -> None:
    module = value.build((12,), outputs, vocabulary)
    assert parameters(module) == size
    logits = module(torch.randint(vocabulary, (2, 12)))
    assert logits.shape == ((2, outputs) if isinstance(value, Bert) else (2, 12, outputs))


@pytest.mark.parametrize("name", MODELS)
def test_initial_models_depend_on_the_seed_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    kind = MODELS[name]
    arguments = ((6,), 9, 9) if kind.takes_tokens else ((1, 8, 8), 3, 0)
    first, again, other = (FlatModel(kind().build(*arguments, seed)).initial() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.isfinite().all()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_normal_numbers_are_those_of_the_inverse() -> None:
    weight = nn.Parameter(torch.zeros(400, 500))
    with initialised_from(3):
        normal_(weight, 0.5)
    assert weight.mean().abs() < 6 * 0.5 / 200_000**0.5
    assert abs(float(weight.detach().std()) / 0.5 - 1) < 6 / 400_000**0.5
    # The same on every machine: 32-bit numbers that were computed in 64 bits.
    assert hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()[:16] == "467697e8bed42c6a"
    with initialised_from(3):
        normal_(weight, 0.5, most=2.0)
    assert weight.abs().max() <= 1.0


@pytest.mark.parametrize("shape", [(64,), (1, 3, 8)])
@pytest.mark.parametrize("value", [Cnn(), PflCnn(), Vgg(), ResNet18()])
def test_convolutions_need_images(value: Architecture, shape: tuple[int, ...]) -> None:
    needs = rf"model {value.kind} needs examples of shape \(channels, height, width\)"
    with pytest.raises(ValueError, match=needs):
        value.build(shape, 3)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_numbers_are_told_apart(name: str) -> None:
    value = MODELS[name]()
    if value.takes_tokens:
        with pytest.raises(ValueError, match=rf"model {name} needs examples of token numbers; got numbers"):
            value.build((8,), 3)
        with pytest.raises(ValueError, match=rf"{name} needs examples of shape \(positions,\); got \(2, 8\)"):
            value.build((2, 8), 3, 5)
    else:
        with pytest.raises(ValueError, match=rf"model {name} needs examples of numbers; got tokens below 5"):
            value.build((1, 8, 8), 3, 5)


SMALL = [
    Lstm(embedding=6, hidden=5, layers=2),
    Transformer(width=8, heads=2, feed_forward=12),
    PflTransformer(width=8, heads=2, feed_forward=12, layers=2),
]


@pytest.mark.parametrize("value", SMALL)
def test_no_output_depends_on_later_tokens(value: Architecture) -> None:
    module = value.build((6,), 11, 11).eval()
    tokens = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    first, second = module(tokens), module(other)
    assert torch.allclose(first[:, :4], second[:, :4], atol=1e-6)
    assert not torch.allclose(first[:, 4], second[:, 4], atol=1e-5)
