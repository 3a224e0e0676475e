"""Models as flat vectors."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmf.models.architectures import mlp
from fedmf.models.flat_model import FlatModel


class Odd(nn.Module):
    """Parameters of 0, 1, 2 and 3 dimensions, one of them empty, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.bias = nn.Parameter(torch.arange(4.0))
        self.empty = nn.Parameter(torch.zeros(0, 2))
        self.weight = nn.Parameter(torch.arange(8.0).reshape(4, 2), requires_grad=False)
        self.cube = nn.Parameter(torch.arange(12.0).reshape(2, 2, 3))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * features @ self.weight.T + self.bias + self.cube.sum()


def test_the_vector_holds_every_parameter_once_in_order() -> None:
    model = FlatModel(Odd())
    expected = torch.cat([torch.tensor([3.0]), torch.arange(4.0), torch.arange(8.0), torch.arange(12.0)])
    assert model.dimension == 25
    assert torch.equal(model.initial(), expected)
    assert not model.initial().requires_grad


@pytest.mark.parametrize("leading", [(), (1,), (5,), (2, 3)])
def test_flatten_undoes_unflatten(leading: tuple[int, ...]) -> None:
    model = FlatModel(Odd())
    flat = torch.randn(*leading, 25, generator=torch.Generator().manual_seed(0))
    views = model.unflatten(flat)
    shapes = {name: tuple(p.shape) for name, p in model.module.named_parameters()}
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        name: (*leading, *shape) for name, shape in shapes.items()
    }
    assert torch.equal(model.flatten(views, leading=len(leading)), flat)


def test_forward_uses_the_given_parameters_only() -> None:
    module = mlp(3, (5,), 2, seed=0)
    model, features = FlatModel(module), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.forward(model.initial(), features), module(features))
    assert not model.forward(torch.zeros(model.dimension), features).any()
    other = mlp(3, (5,), 2, seed=1)
    assert torch.equal(model.forward(FlatModel(other).initial(), features), other(features))


def test_the_initial_vector_is_a_copy() -> None:
    model = FlatModel(mlp(3, (), 2, seed=0))
    model.initial().zero_()
    assert model.initial().any()


@pytest.mark.parametrize("module", [nn.BatchNorm1d(3), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))])
def test_buffers_are_refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"model must have no buffers; got '.*running_mean'.*use GroupNorm"):
        FlatModel(module)


def test_buffers_that_state_dicts_leave_out_are_refused() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("steps", torch.tensor(0), persistent=False)
    with pytest.raises(ValueError, match="got 'steps'"):
        FlatModel(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_than_float32_are_refused(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(dtype))
    with pytest.raises(
        ValueError, match=r"must be float32; got '1.weight' of another type. Call module.float\(\)"
    ):
        FlatModel(module)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="model must have parameters"):
        FlatModel(nn.ReLU())


def test_initialisation_depends_on_the_seed_alone_and_leaves_global_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No global generator moves, nor is a GPU's reseeded."""
    reseeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    states = torch.random.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    first = FlatModel(mlp(4, (3, 2), 2, seed=9)).initial()
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert (str(np.random.get_state()), random.getstate()) == states[1:]  # noqa: NPY002
    assert reseeded == []
    torch.rand(5)
    assert torch.equal(first, FlatModel(mlp(4, (3, 2), 2, seed=9)).initial())
    assert not torch.equal(first, FlatModel(mlp(4, (3, 2), 2, seed=10)).initial())


def test_mlp_shapes() -> None:
    assert [tuple(p.shape) for p in mlp(4, (3, 5), 2, seed=0).parameters()] == [
        *((3, 4), (3,)),
        *((5, 3), (5,)),
        *((2, 5), (2,)),
    ]
    with pytest.raises(
        ValueError,
        match=r"hidden .* must be a tuple of positive whole numbers; got \(3, 0\)",
    ):
        mlp(4, (3, 0), 2, seed=0)
