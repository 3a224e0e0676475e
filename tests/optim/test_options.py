"""Options of server optimizers: their rules, workloads and ranges, and objects of users."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from support.dense_rules import membership

from fedmf.accounting.queries import SecondForm
from fedmf.mechanisms.workload import ToeplitzWorkload, window
from fedmf.moments import BlockEnergies
from fedmf.optim import (
    OPTIMIZERS,
    OwnOptimizer,
    OwnRule,
    RoundRelease,
    Sgd,
    chosen,
)
from fedmf.values import value_of

SHAPES = [(4, 3), (4,)]
DIMENSION = 16
ROUNDS = 12
#: Coordinates of each block: the (4, 3) tensor has four channels, the vector is one.
SIZES = {"coordinate": [1] * 16, "channel": [3, 3, 3, 3, 4], "tensor": [12, 4], "model": [16]}
NOISE_VARIANCE = 0.25
# Both sides in float64: what is left are sums in another order over twelve steps.
TOLERANCE = 1e-10


Fields = dict[str, Any]


def rate_of(t: int, of: Fields) -> float:
    """The learning rate η_t: equal steps up in the warm-up, then the schedule."""
    warmup = of["warmup"]
    if t < warmup:
        return of["learning_rate"] * (t + 1) / (warmup + 1)
    passed = (t - warmup) / (ROUNDS - warmup)
    shape = {"constant": 1.0, "linear": 1 - passed, "cosine": (1 + math.cos(math.pi * passed)) / 2}
    return of["learning_rate"] * shape[of["schedule"]]


def moved(t: int, theta: np.ndarray, direction: np.ndarray, of: Fields) -> np.ndarray:
    """θ_{t+1} = (1 − η_t·w)·θ_t + η_t·Δ_t."""
    eta = rate_of(t, of)
    return (1 - eta * of["weight_decay"]) * theta + eta * direction


def by_momentum(theta: np.ndarray, updates: np.ndarray, of: Fields) -> np.ndarray:
    """θ_n of SGD with momentum."""
    beta = of["momentum"]
    velocity = np.zeros_like(theta)
    for t, u in enumerate(updates):
        velocity = beta * velocity + u
        theta = moved(t, theta, velocity, of)
    return theta


def by_blocks(
    theta: np.ndarray, updates: np.ndarray, second: np.ndarray, kind: str, of: Fields
) -> np.ndarray:
    """θ_n of Adam with second moments by block; ``second`` are released energies."""
    sizes = np.array(SIZES[of["blocks"]])
    spread = membership(list(sizes))
    beta1 = of["beta1"]
    beta2 = of["beta2"]
    m = np.zeros_like(theta)
    v = np.zeros(len(sizes))
    for t, u in enumerate(updates):
        m = beta1 * m + (1 - beta1) * u
        q = spread @ u**2
        if kind == "jme-adam":
            q = second[t]
        if kind == "adam-debiased":
            q = q - NOISE_VARIANCE * sizes
        v = beta2 * v + (1 - beta2) * q / sizes
        unbiased = np.maximum(v / (1 - beta2 ** (t + 1)), 0.0)
        scale = np.sqrt(unbiased) + of["eps"]
        scale = scale + of["relative_eps"] * np.sqrt(unbiased @ sizes / sizes.sum())
        first = m / (1 - beta1 ** (t + 1))
        theta = moved(t, theta, first / (scale @ spread), of)
    return theta


def test_rules_and_workloads_are_what_the_options_say() -> None:
    """Twelve rounds by the formulas in float64, and A₁ by how unit updates move the last model."""
    for kind, fields, workload, second in [
        ("sgd", {}, "momentum:0.9", "prefix"),
        ("sgd", {"momentum": 0.0, "schedule": "cosine", "warmup": 3}, "prefix*cosine:3", "prefix"),
        ("sgd", {"schedule": "linear"}, "momentum:0.9*linear", "prefix"),
        ("sgd", {"weight_decay": 0.5, "momentum": 0.5}, "momentum:0.5:0.95", "prefix"),
        (
            "adam",
            {"beta1": 0.5, "beta2": 0.9, "blocks": "channel"},
            "momentum:0.5",
            "exponential:0.9",
        ),
        (
            "adam",
            {"blocks": "coordinate", "schedule": "cosine"},
            "momentum:0.9*cosine",
            "exponential:0.99",
        ),
        ("adam-debiased", {"beta1": 0.0, "beta2": 0.5}, "prefix", "exponential:0.5"),
        (
            "jme-adam",
            {"eps": 0.1, "relative_eps": 0.5, "weight_decay": 0.2},
            "momentum:0.9:0.98",
            "exponential:0.99",
        ),
        (
            "jme-adam",
            {"blocks": "model", "beta2": 0.0},
            "momentum:0.9",
            "window:1",
        ),
    ]:
        value = OPTIMIZERS[kind](**fields)
        assert value_of(OPTIMIZERS, value.to_dict()) == value
        of = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        rule = value.build(SHAPES, ROUNDS)
        generator = torch.Generator().manual_seed(7)
        start = torch.randn(DIMENSION, generator=generator, dtype=torch.float64)
        updates = torch.randn(ROUNDS, DIMENSION, generator=generator, dtype=torch.float64)
        energies = torch.zeros(ROUNDS, 0)
        if rule.second_moment is not None:
            size = rule.second_moment.size
            energies = torch.randn(ROUNDS, size, generator=generator, dtype=torch.float64) ** 2
        parameters = start
        state = rule.init(start)
        for t in range(ROUNDS):
            release = RoundRelease(updates[t], NOISE_VARIANCE)
            if rule.second_moment is not None:
                release = RoundRelease(updates[t], NOISE_VARIANCE, energies[t], 0.1)
            parameters, state = rule.step(t, parameters, release, state)
        if kind == "sgd":
            expected = by_momentum(start.numpy(), updates.numpy(), of)
        else:
            expected = by_blocks(start.numpy(), updates.numpy(), energies.numpy(), kind, of)
        np.testing.assert_allclose(parameters.numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)
        A = value.workload(ROUNDS)
        linear = {"momentum": of.get("beta1"), **of}
        last = by_momentum(np.zeros(ROUNDS), np.eye(ROUNDS), linear)
        np.testing.assert_allclose(
            of["learning_rate"] * A.materialize()[-1], last, rtol=TOLERANCE, atol=TOLERANCE
        )
        assert (A.name, value.second_workload(ROUNDS).name) == (workload, second)


class Plain:
    """The step θ + u, with a second moment that is not used."""

    second_moment = BlockEnergies([16])
    second_form: SecondForm = "per-user"

    def init(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def step(
        self,
        t: int,
        parameters: torch.Tensor,
        release: RoundRelease,
        state: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return parameters + release.mean, {}


class Windowed(Plain):
    def workload(self, rounds: int) -> ToeplitzWorkload:
        return window(3, rounds)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        return window(2, rounds)


def test_an_own_rule_stands_where_options_stand() -> None:
    rule = Plain()
    options = Sgd()
    assert chosen(options) is options
    own = chosen(rule)
    assert isinstance(own, OwnOptimizer)
    built = own.build(SHAPES, ROUNDS)
    assert isinstance(built, OwnRule)
    assert built.rule is rule
    assert (own.workload(5).name, own.second_workload(5).name) == ("prefix", "prefix")
    named = chosen(Windowed())
    assert (named.workload(5).name, named.second_workload(5).name) == ("window:3", "window:2")
