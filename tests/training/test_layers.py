"""Passes written out against automatic differentiation, layer by layer and in chains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.chains import LowRank
from torch import Tensor, nn

from fedmf.models.flat_model import FlatModel
from fedmf.models.parts import Recurrent, Residual
from fedmf.training.gradients.alignment import aligned, aligned_empty
from fedmf.training.gradients.convolutions import ConvolutionByProducts, ConvolutionByUser
from fedmf.training.gradients.gradient import Accumulation, Batch, FunctionalGradient, LoopGradient
from fedmf.training.gradients.layered import LayeredGradient, layers_of
from fedmf.training.gradients.weights import Places
from fedmf.training.losses import cross_entropy

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
# float32: products of a few hundred terms in another order.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}

IMAGES = (3, 9, 8)
CHAINS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "linear": ((7,), lambda: nn.Linear(7, 4)),
    "no bias": ((7,), lambda: nn.Sequential(nn.Linear(7, 5, bias=False), nn.ReLU(), nn.Linear(5, 4))),
    "deep": (
        (7,),
        lambda: nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Sequential(nn.ReLU(), nn.Linear(5, 4))),
    ),
    "smooth": (
        (7,),
        lambda: nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.ReLU(), nn.Sigmoid(), nn.Linear(5, 4)),
    ),
    "tokens": ((6, 7), lambda: nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4))),
    "flat images": (IMAGES, lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(216, 4))),
    "convolution": (
        IMAGES,
        lambda: nn.Sequential(
            *(
                nn.Conv2d(3, 5, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(5, 4, 3, stride=2, dilation=1),
            ),
            *(nn.Softplus(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
        ),
    ),
    "odd convolution": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(2, 1), bias=False),
            *(nn.MaxPool2d(2, stride=1, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
    ),
    "one channel": (
        (1, 6, 6),
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 2, 3), nn.MaxPool2d((2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)),
        ),
    ),
}


def problem(name: str, users: int = 3, width: int = 5) -> tuple[FlatModel, tuple[Tensor, ...]]:
    """A model, and parameters, features, labels and weights of some users, the last examples padding."""
    shape, make = CHAINS[name]
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = FlatModel(make())
    noise = torch.randn(users, model.dimension, generator=generator)
    features = torch.randn(users, width, *shape, generator=generator)
    weights = torch.rand(users, width, generator=generator)
    weights[0, -2:] = 0.0
    return model, (
        model.initial() + 0.1 * noise,
        features,
        torch.randint(4, (users, width), generator=generator),
        weights,
    )


def layered(model: FlatModel, device: torch.device) -> LayeredGradient:
    layers = layers_of(model, device)
    assert layers is not None
    return LayeredGradient(layers, cross_entropy)


def expected_gradients(model: FlatModel, batch: tuple[Tensor, ...]) -> Tensor:
    """One user after another with autograd on a copy of the module."""
    rows = []
    for parameters, features, labels, weights in zip(*batch, strict=True):
        module = copy.deepcopy(model.module)
        nn.utils.vector_to_parameters(parameters.clone(), module.parameters())
        losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
        (losses * weights).sum().backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("way", ["by user", "by products", "torch.func", "loop"])
@pytest.mark.parametrize(("beta", "alpha"), [(0.0, 1.0), (1.0, -0.3), (0.9, 2.0)])
def test_gradients_equal_those_of_the_module(name: str, way: str, beta: float, alpha: float) -> None:
    model, batch = problem(name)
    gradient = {
        "by user": lambda: layered(model, CPU),
        "by products": lambda: layered(model, ELSEWHERE),
        "torch.func": lambda: FunctionalGradient(model, cross_entropy),
        "loop": lambda: LoopGradient(model, cross_entropy),
    }[way]()
    before = torch.full_like(batch[0], torch.nan if beta == 0.0 else 0.7)
    target = before.clone()
    with torch.no_grad():
        gradient.accumulate(Batch(*batch[1:]), Accumulation(batch[0], target, beta, alpha))
    expected = alpha * expected_gradients(model, batch)
    if beta:
        expected += beta * before
    torch.testing.assert_close(target, expected, **TOLERANCE)


@pytest.mark.parametrize("name", CHAINS)
def test_a_step_in_place_uses_the_old_parameters_throughout(name: str) -> None:
    model, batch = problem(name)
    expected = batch[0] - 0.5 * expected_gradients(model, batch)
    models = batch[0].clone()
    with torch.no_grad():
        layered(model, CPU).accumulate(Batch(*batch[1:]), Accumulation(models, models, beta=1.0, alpha=-0.5))
    torch.testing.assert_close(models, expected, **TOLERANCE)


def test_both_ways_to_convolve_are_meant() -> None:
    model, _ = problem("convolution")
    for device, kind in ((CPU, ConvolutionByUser), (ELSEWHERE, ConvolutionByProducts)):
        layers = layers_of(model, device)
        assert layers is not None
        assert isinstance(layers.layers[0], kind)


@pytest.mark.parametrize(
    "shape",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": (2, 3), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
    ],
    ids=str,
)
def test_patches_are_those_of_unfold(shape: dict[str, Any]) -> None:
    """Of users side by side, whose images begin anywhere in memory."""
    module = nn.Conv2d(2, 5, **shape)
    layer = ConvolutionByProducts(module, Places(module))
    x = torch.randn(4, 4, 3, 9, 7)[1:, :, 1:]
    assert not x.is_contiguous()
    columns, size = layer._columns(x)
    expected = F.unfold(x.flatten(0, 1), module.kernel_size, module.dilation, module.padding, module.stride)  # type: ignore[arg-type]
    assert torch.equal(columns, expected.unflatten(0, (3, 4)).transpose(1, 2).flatten(2))
    assert size == tuple(module(x[0]).shape[2:])


class Doubled(nn.Linear):
    """Looks like a linear layer, but is not."""

    def forward(self, features: Tensor) -> Tensor:
        return 2 * super().forward(features)


class Unused(nn.Sequential):
    """Looks like a chain, but is not."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs))
        self.rest = nn.Parameter(torch.zeros(3))


def hooked() -> nn.Module:
    module = nn.Linear(7, 4)
    module.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    return module


class Gate(nn.LSTM):
    """Looks like an LSTM, but might not be."""


def patched() -> nn.Module:
    module = nn.Linear(7, 4)
    module.forward = lambda features: 2 * nn.Linear.forward(module, features)  # type: ignore[method-assign]
    return module


def merged() -> nn.Module:
    module = LowRank(nn.Linear(7, 4), 2, 0.5)
    module.merged = True
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: Doubled(7, 4),
        hooked,
        patched,
        lambda: nn.Sequential(patched(), nn.ReLU()),
        lambda: Residual(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(7, 7))),
        lambda: Residual(Residual(nn.Linear(7, 7), nn.ReLU(inplace=True))),
        merged,
        lambda: nn.Sequential(nn.Linear(7, 4), nn.PReLU()),
        lambda: Recurrent(Gate(7, 4, batch_first=True)),
        lambda: nn.Embedding(7, 4, max_norm=1.0),
        lambda: nn.Embedding(7, 4, sparse=True),
        lambda: Residual(nn.Linear(7, 7), nn.PReLU()),
        lambda: nn.Sequential(Unused(7, 4), nn.ReLU()),
        lambda: nn.Conv2d(4, 4, 3, groups=2),
        lambda: nn.Conv2d(4, 4, 3, padding="same"),
        lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        lambda: nn.Sequential(nn.Linear(7, 4), nn.Flatten(0)),
        lambda: nn.Sequential(nn.Linear(7, 4), nn.Dropout(0.5)),
    ],
)
def test_what_is_not_written_out_is_left_to_the_general_way(make: Callable[[], nn.Module]) -> None:
    assert layers_of(FlatModel(make()), CPU) is None


@pytest.mark.parametrize("shape", [(1,), (3, 5), (16,), (2, 2, 4)])
def test_each_users_numbers_begin_on_a_cache_line(shape: tuple[int, ...]) -> None:
    x = torch.arange(3.0 * torch.Size(shape).numel()).reshape(3, *shape)
    for tensor in (aligned(x), aligned(x[1:]), aligned(x[2:]), aligned_empty(x, 4, *shape)):
        assert all(row.data_ptr() % 64 == 0 and row.is_contiguous() for row in tensor)
    assert torch.equal(aligned(x[1:]), x[1:])
    once = aligned(x[1:])
    assert aligned(once) is once
