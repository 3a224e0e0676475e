"""Models as flat vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedmf.models import FlatModel, mlp


class Odd(nn.Module):
    """Parameters of 0, 1, 2 and 3 dimensions, one of them empty, one frozen, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.bias = nn.Parameter(torch.arange(4.0))
        self.empty = nn.Parameter(torch.zeros(0, 2))
        self.weight = nn.Parameter(torch.arange(8.0).reshape(4, 2), requires_grad=False)
        self.cube = nn.Parameter(torch.arange(12.0).reshape(2, 2, 3))
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * features @ self.weight.T + self.bias + self.cube.sum()


def test_the_vector_holds_every_trained_parameter_once_in_order() -> None:
    model = FlatModel(Odd())
    expected = torch.cat([torch.tensor([3.0]), torch.arange(4.0), torch.arange(12.0)])
    assert model.dimension == 17
    assert model.arrays == (("scale", ()), ("bias", (4,)), ("empty", (0, 2)), ("cube", (2, 2, 3)))
    assert model.shapes == ((), (4,), (0, 2), (2, 2, 3))
    assert list(model.constants) == ["weight", "places"]
    assert torch.equal(model.initial(), expected)
    assert not model.initial().requires_grad


@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_flatten_undoes_unflatten(leading: tuple[int, ...]) -> None:
    model = FlatModel(Odd())
    flat = torch.randn(*leading, 17, generator=torch.Generator().manual_seed(0))
    views = model.unflatten(flat)
    assert views.keys() == model.trained.keys()
    for name, p in model.trained.items():
        assert tuple(views[name].shape) == (*leading, *p.shape)
    assert torch.equal(model.flatten(views, leading=len(leading)), flat)


def test_forward_uses_the_given_parameters_only() -> None:
    module = mlp(3, (5,), 2, seed=0)
    model = FlatModel(module)
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.forward(model.initial(), features), module(features))
    assert not model.forward(torch.zeros(model.dimension), features).any()
    other = mlp(3, (5,), 2, seed=1)
    assert torch.equal(model.forward(FlatModel(other).initial(), features), other(features))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
            r"no statistics of a batch.*; got BatchNorm1d '1' in training mode. Freeze it with"
            r" fedmf.freeze\(module\).*GroupNorm",
        ),
        (nn.InstanceNorm1d(3, track_running_stats=True), "no statistics of a batch"),
        (
            nn.Linear(2, 2).requires_grad_(False),
            "must have parameters to train; got none; all of them are frozen",
        ),
        (nn.ReLU(), r"must have parameters to train; got none\."),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "must be float32; got '1.weight' of another type",
        ),
        (
            nn.Sequential(nn.LazyLinear(4)),
            "known shapes; got '0.weight' of a lazy module. Call the module once",
        ),
        (
            nn.Sequential(nn.Embedding(9, 4, sparse=True)),
            "must have dense gradients.*; got sparse=True in '0'",
        ),
    ],
)
def test_modules_that_cannot_be_trained_privately_are_refused(
    module: nn.Module, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FlatModel(module)


class Tied(nn.Module):
    """One matrix at both ends, a frozen layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.between = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.between.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.between(self.first(features)))


def test_tied_parameters_count_once_and_stay_tied() -> None:
    torch.manual_seed(0)
    model = FlatModel(Tied())
    features = torch.randn(5, 3)
    assert model.arrays == (("first.weight", (3, 3)), ("first.bias", (3,)))
    flat = torch.randn(12, generator=torch.Generator().manual_seed(1))
    weight = flat[:9].reshape(3, 3)
    bias = flat[9:]
    between = model.module.between
    expected = between(features @ weight.T + bias) @ weight.T
    torch.testing.assert_close(model.forward(flat, features), expected)


def test_copies_share_every_tensor_and_nothing_else() -> None:
    model = FlatModel(Odd())
    copied = model.copied()
    mine = {**model.trained, **model.constants}
    theirs = {**copied.trained, **copied.constants}
    assert copied.module is not model.module
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.data_ptr() == theirs[name].data_ptr(), name
    with torch.no_grad():
        copied.forward(torch.zeros(17), torch.ones(3, 2))
    assert torch.equal(model.initial(), FlatModel(Odd()).initial())


def test_the_digest_of_constants_tells_names_types_shapes_and_values_apart() -> None:
    def digest(weight: Tensor = torch.arange(8.0).reshape(4, 2), places: int = 0) -> str:
        module = Odd()
        module.weight = nn.Parameter(weight, requires_grad=False)
        module.register_buffer("places", torch.arange(4) + places)
        return FlatModel(module).constants_digest()

    weight = torch.arange(8.0).reshape(4, 2)
    others = [
        digest(-weight),
        digest(weight.reshape(2, 4)),
        digest(weight.double()),
        digest(places=1),
    ]
    assert digest() == FlatModel(Odd()).constants_digest()
    assert len({digest(), *others}) == 5
