"""Passes written out for texts and residual networks, against autograd and torch.optim in 64 bits."""

from __future__ import annotations

import pytest
import torch
from support.chains import CHAINS, Problem, squared
from torch import Tensor, nn

from fedmf.models import FlatModel
from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.gradient import Accumulation, Batch, FunctionalGradient, LoopGradient
from fedmf.training.gradients.layered import LayeredGradient, chain_of

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
#: Sums of a few hundred terms of 64 bits in another order, over three steps.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}
RATE = 0.03


def by_passes(problem: Problem, device: torch.device, momentum: float = 0.0, proximal: float = 0.0) -> Tensor:
    """Every user's parameters after the steps, as `LocalTrainer` takes them."""
    chain = chain_of(problem.module, device)
    assert chain is not None
    gradient = LayeredGradient(chain, squared)
    models = aligned_empty(problem.rows, *problem.rows.shape).copy_(problem.rows)
    velocity = aligned_empty(models, *models.shape).fill_(torch.nan)
    with torch.no_grad():
        for s, batch in enumerate(problem.batches):
            if not (momentum or proximal):
                gradient.accumulate(batch, Accumulation(models, models, beta=1.0, alpha=-RATE))
                continue
            gradient.accumulate(batch, Accumulation(models, velocity, momentum if s else 0.0, alpha=1.0))
            velocity.add_(models - problem.rows, alpha=proximal)
            models.add_(velocity, alpha=-RATE)
    return models


#: Momentum and μ of FedProx.
RULES = {"plain": (0.0, 0.0), "momentum and FedProx": (0.7, 0.3)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CHAINS)
def test_steps_equal_those_of_torch(name: str, rule: str) -> None:
    check_steps(name, 0 if rule == "plain" else 1, *RULES[rule])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CHAINS)
def test_steps_of_other_shapes_equal_those_of_torch(name: str, rule: str) -> None:
    for seed in (1, 2, 3) if rule == "plain" else (0, 2, 3):
        check_steps(name, seed, *RULES[rule])


def check_steps(name: str, seed: int, momentum: float, proximal: float) -> None:
    problem = Problem.drawn(name, seed)
    expected = problem.by_torch(RATE, momentum, proximal)
    assert not torch.equal(expected, problem.rows)
    for device in (CPU, ELSEWHERE):
        trained = by_passes(problem, device, momentum, proximal)
        torch.testing.assert_close(trained, expected, **TOLERANCE)


def in_32_bits(batch: Batch) -> Batch:
    features = batch.features.float() if batch.features.is_floating_point() else batch.features
    return Batch(features, batch.labels.float(), batch.weights.float())


@pytest.mark.parametrize("name", CHAINS)
def test_users_together_have_the_bits_they_have_alone(name: str) -> None:
    problem = Problem.drawn(name, 5)
    problem = Problem(problem.module.float(), problem.rows.float(), [in_32_bits(b) for b in problem.batches])
    together = by_passes(problem, CPU, 0.7, 0.3)
    for u in range(len(problem.rows)):
        part = slice(u, u + 1)
        batches = [Batch(b.features[part], b.labels[part], b.weights[part]) for b in problem.batches]
        alone = by_passes(Problem(problem.module, problem.rows[part], batches), CPU, 0.7, 0.3)
        assert torch.equal(alone[0], together[u])


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", [name for name in CHAINS if "frozen" not in name and name != "adapted"])
def test_the_parts_also_go_the_general_ways(name: str) -> None:
    problem = Problem.drawn(name, 1)
    batch, rows = in_32_bits(problem.batches[0]), problem.rows.float()
    model = FlatModel(problem.module.float())
    chain = chain_of(problem.module, CPU)
    assert chain is not None
    results = []
    for gradient in (
        LayeredGradient(chain, squared),
        LoopGradient(model, squared),
        FunctionalGradient(model, squared),
    ):
        target = torch.zeros_like(rows)
        with torch.no_grad():
            gradient.accumulate(batch, Accumulation(rows, target, 1.0, 1.0))
        results.append(target)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-3, atol=1e-3)


def test_plain_steps_touch_only_rows_of_tokens_that_occur() -> None:
    table = torch.randn(2, 10 * 3)
    layer = chain_of(nn.Sequential(nn.Embedding(10, 3, padding_idx=4)), CPU)
    assert layer is not None
    models = aligned_empty(table, *table.shape).copy_(table)
    tokens = torch.tensor([[[1, 4], [1, 7]], [[2, 2], [4, 4]]])
    batch = Batch(tokens, torch.zeros(2, 2, 2, 3), torch.ones(2, 2))
    with torch.no_grad():
        LayeredGradient(layer, squared).accumulate(batch, Accumulation(models, models, 1.0, -0.1))
    moved = (models != table).view(2, 10, 3).any(dim=2)
    assert moved.nonzero().tolist() == [[0, 1], [0, 7], [1, 2]]
