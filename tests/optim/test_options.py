"""Tables of server optimizers: rules and workloads as recorded, ranges, and objects of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fedmf.accounting import SecondForm
from fedmf.moments import BlockEnergies
from fedmf.optim import (
    OPTIMIZERS,
    Adam,
    FedAdagrad,
    JmeAdam,
    OwnOptimizer,
    OwnRule,
    RoundRelease,
    Sgd,
    chosen,
)
from fedmf.values import value_of
from fedmf.workload import ToeplitzWorkload, window

SHAPES, DIMENSION, ROUNDS = [(4, 3), (4,)], 16, 12


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("kind", "fields", "stepped", "weighed", "workload", "second"),
    [
        ("sgd", {}, "a6608cc31b6b4739", "1df0501b158cd0fd", "momentum:0.9", "prefix"),
        (
            "sgd", {"momentum": 0.0, "schedule": "cosine", "warmup": 3},
            "f2c8da756891c1f9", "4139af228ae87492", "prefix*cosine:3", "prefix",
        ),
        (
            "sgd", {"nesterov": True, "schedule": "linear", "update_clip": 0.5},
            "e7653713011e9273", "1902bb8bc1e2a3da", "nesterov:0.9*linear", "prefix",
        ),
        (
            "sgd", {"weight_decay": 0.5, "momentum": 0.5},
            "9ef4517846f5e2fe", "25d393d2132117fd", "momentum:0.5:0.95", "prefix",
        ),
        (
            "fedadagrad", {"epsilon": 0.01, "beta1": 0.5, "blocks": "channel"},
            "e4a7ba165141fbb4", "88fc801e54fbbaa5", "momentum:0.5", "prefix",
        ),
        ("fedadagrad", {}, "32b5c542a71b28ed", "1df0501b158cd0fd", "momentum:0.9", "prefix"),
        (
            "fedyogi", {"epsilon": 0.01, "beta2": 0.9},
            "281c17f16f31d100", "1df0501b158cd0fd", "momentum:0.9", "exponential:0.9",
        ),
        (
            "adam", {"blocks": "coordinate", "schedule": "cosine"},
            "184a6e7c78f3f419", "a58a576a1ffb92bf", "momentum:0.9*cosine", "exponential:0.99",
        ),
        (
            "adam-debiased", {"beta1": 0.0, "beta2": 0.5},
            "ab2c3cdbcd538a5f", "cf966f1001f07510", "prefix", "exponential:0.5",
        ),
        (
            "jme-adam", {"epsilon": 0.1, "relative_epsilon": 0.5, "weight_decay": 0.2},
            "8d0c32f24d92698e", "ede18d72707e5e61", "momentum:0.9:0.98", "exponential:0.99",
        ),
        (
            "jme-adam", {"second_form": "squared-mean", "blocks": "model", "beta2": 0.0},
            "d1ef9a03fa494791", "1df0501b158cd0fd", "momentum:0.9", "window:1",
        ),
    ],
)  # fmt: skip
def test_rules_and_workloads_are_what_they_were(
    kind: str, fields: dict[str, Any], stepped: str, weighed: str, workload: str, second: str
) -> None:
    """Digests of revision 210cf2f: the model after twelve rounds with its state, coefficients of A₁."""
    value = OPTIMIZERS[kind](**fields)
    assert value_of(OPTIMIZERS, value.to_dict()) == value
    rule, generator = value.build(SHAPES, ROUNDS), torch.Generator().manual_seed(7)
    parameters = torch.randn(DIMENSION, generator=generator)
    state = rule.init(parameters)
    for t in range(ROUNDS):
        mean, moment = torch.randn(DIMENSION, generator=generator), rule.second_moment
        pair = (torch.rand(moment.size, generator=generator), 0.1) if moment else ()
        parameters, state = rule.step(t, parameters, RoundRelease(mean, 0.25, *pair), state)
    assert digest(parameters.numpy(), *(state[name].numpy() for name in sorted(state))) == stepped
    A = value.workload(ROUNDS)
    weights = () if A.column_weights is None else (A.column_weights,)
    assert digest(A.coefficients, *weights) == weighed
    assert (A.name, value.second_workload(ROUNDS).name) == (workload, second)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.0}, "η .* must be positive and finite; got 0.0"),
        ({"learning_rate": 0.5, "weight_decay": 2.1}, r"w \(weight_decay\) must be at most 1/η = 2; got 2.1"),
        ({"weight_decay": -1.0}, r"w \(weight_decay\) must be finite and >= 0; got -1.0"),
        ({"update_clip": 0.0}, r"c \(update_clip\) must be positive; got 0.0"),
        ({"schedule": "step"}, "schedule must be one of constant, linear, cosine; got 'step'"),
        ({"warmup": -1}, r"w \(warmup\) must be a whole number in 0\.\.2147483647; got -1"),
    ],
)
def test_what_no_optimizer_can_be_is_refused(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPTIMIZERS[kind](**fields)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Sgd, {"momentum": 1.0}, r"β \(momentum\) must lie in \[0, 1\); got 1.0"),
        (Sgd, {"momentum": 0.0, "nesterov": True}, r"β \(momentum\) must be positive with nesterov; got 0"),
        (FedAdagrad, {"epsilon": 0.0}, r"τ \(epsilon\) must be positive and finite; got 0.0"),
        (Adam, {"beta1": -0.1}, r"β₁ \(beta1\) must lie in \[0, 1\); got -0.1"),
        (Adam, {"blocks": "row"}, "blocks must be one of coordinate, channel, tensor, model; got 'row'"),
        (Adam, {"relative_epsilon": 0.0}, "must be positive; got 0 for both"),
        (JmeAdam, {"second_form": "joint-clip"}, "second_form must be one of per-user, squared-mean; got"),
    ],
)
def test_impossible_options_are_refused(kind: type[Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_a_warm_up_must_end_before_the_horizon() -> None:
    value = Sgd(warmup=12)
    assert value.build(SHAPES, 13).init(torch.zeros(16))["velocity"].shape == (16,)
    for ask in (lambda: value.build(SHAPES, 12), lambda: value.workload(12)):
        with pytest.raises(ValueError, match=r"w \(warm-up rounds\) must lie in 0\.\.11; got 12"):
            ask()


class Plain:
    """θ + u, and a second moment that nobody looks at."""

    second_moment = BlockEnergies([16])
    second_form: SecondForm = "per-user"

    def init(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def step(
        self, t: int, parameters: torch.Tensor, release: RoundRelease, state: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return parameters + release.mean, {}


class Windowed(Plain):
    def workload(self, rounds: int) -> ToeplitzWorkload:
        return window(3, rounds)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        return window(2, rounds)


def test_an_own_rule_stands_where_options_stand() -> None:
    rule, options = Plain(), Sgd()
    assert chosen(options) is options
    own = chosen(rule)
    assert isinstance(own, OwnOptimizer)
    built = own.build(SHAPES, ROUNDS)
    assert isinstance(built, OwnRule)
    assert built.rule is rule
    assert (own.workload(5).name, own.second_workload(5).name) == ("prefix", "prefix")
    named = chosen(Windowed())
    assert (named.workload(5).name, named.second_workload(5).name) == ("window:3", "window:2")
