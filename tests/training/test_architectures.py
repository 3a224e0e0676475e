"""Models by name: sizes, shapes and seeds."""

from __future__ import annotations

import pytest
import torch

from fedmf.models.architectures import MODELS, build_model, cnn
from fedmf.models.flat_model import FlatModel


@pytest.mark.parametrize(
    ("name", "shape", "hidden", "parameters"),
    [
        ("mlp", (1, 28, 28), (128, 64), 109_386),
        ("mlp", (784,), (128, 64), 109_386),
        ("cnn", (1, 28, 28), (128,), 206_922),
        ("cnn", (3, 32, 32), (), 16 * 27 + 16 + 32 * 144 + 32 + 2048 * 10 + 10),
        ("logistic", (60,), (32,), 610),
        ("logistic", (3, 2, 2), (), 130),
    ],
)
def test_models_have_the_size_they_should(
    name: str, shape: tuple[int, ...], hidden: tuple[int, ...], parameters: int
) -> None:
    module = build_model(name, shape, hidden, 10, seed=0)
    model = FlatModel(module)
    assert model.dimension == parameters
    features = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    assert model.forward(model.initial(), features).shape == (5, 10)


@pytest.mark.parametrize("name", MODELS)
def test_initial_models_depend_on_the_seed_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        FlatModel(build_model(name, (1, 8, 8), (4,), 3, seed)).initial() for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(64,), (1, 3, 8), (2, 8, 8, 8), (8, 8)])
def test_convolutions_need_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"model cnn needs examples of shape \(channels, height, width\)"):
        build_model("cnn", shape, (8,), 3, seed=0)


def test_unknown_models_and_empty_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="model must be one of mlp, cnn, logistic; got 'resnet'"):
        build_model("resnet", (3,), (), 2, seed=0)
    with pytest.raises(ValueError, match=r"hidden-units must be positive; got \(8, 0\)"):
        cnn((1, 8, 8), (8, 0), 3, seed=0)
