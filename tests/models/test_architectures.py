"""Models by name: sizes, shapes and seeds."""

from __future__ import annotations

import pytest
import torch

from fedmf.models.architectures import MODELS, Architecture, Cnn, Logistic, Mlp
from fedmf.models.flat_model import FlatModel


@pytest.mark.parametrize(
    ("value", "shape", "parameters"),
    [
        (Mlp(hidden_units=(128, 64)), (1, 28, 28), 109_386),
        (Mlp(hidden_units=(128, 64)), (784,), 109_386),
        (Cnn(hidden_units=(128,)), (1, 28, 28), 206_922),
        (Cnn(hidden_units=()), (3, 32, 32), 16 * 27 + 16 + 32 * 144 + 32 + 2048 * 10 + 10),
        (Logistic(), (60,), 610),
        (Logistic(), (3, 2, 2), 130),
    ],
)
def test_models_have_the_size_they_should(
    value: Architecture, shape: tuple[int, ...], parameters: int
) -> None:
    module = value.build(shape, 10)
    model = FlatModel(module)
    assert model.dimension == parameters
    features = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    assert model.forward(model.initial(), features).shape == (5, 10)


@pytest.mark.parametrize("name", MODELS)
def test_initial_models_depend_on_the_seed_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        FlatModel(MODELS[name](seed=seed).build((1, 8, 8), 3)).initial() for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(64,), (1, 3, 8), (2, 8, 8, 8), (8, 8)])
def test_convolutions_need_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"model cnn needs examples of shape \(channels, height, width\)"):
        Cnn().build(shape, 3)


@pytest.mark.parametrize("units", [(8, 0), (8, 2.0), [8], 8])
def test_impossible_layers_are_refused(units: object) -> None:
    for kind in (Mlp, Cnn):
        with pytest.raises(ValueError, match="hidden_units must be a tuple of positive whole numbers; got"):
            kind(hidden_units=units)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed \(of the model\) must be a whole number in 0\.\.*"):
        Logistic(seed=-1)
