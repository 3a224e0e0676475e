"""One computation, many ways to run it: slices, per-user messages, several nodes, and a plain loop."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import linear_task, run_small, schedule_of, small_run
from torch import nn

from fedmf.data import InMemoryDataset
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.source import GaussianSource
from fedmf.optim import Sgd
from fedmf.runs.run import Run
from fedmf.training.batches import user_orders

KEYS = {
    "mechanism": "bisr",
    "bands": 4,
    "server_momentum": 0.9,
    "local_batch_size": 16,
}

#: float32 models with entries of size about 1 after 12 rounds; summation orders inside one user's training
#: may differ between batched and single programs.
TOLERANCE = 2e-6


def reference_loop(run: Run) -> np.ndarray:
    """Training as a textbook would write it: one user after another, dense C⁻¹, torch.optim on both sides."""
    task, local, optimizer = run.task_source.build(), run.client, run.server
    assert isinstance(optimizer, Sgd)
    dataset = task.dataset
    assert isinstance(dataset, InMemoryDataset)
    model = task.model.module
    server = torch.optim.SGD(model.parameters(), lr=optimizer.learning_rate, momentum=optimizer.momentum)
    n, m, k, b = run.cohorts.rounds, run.cohorts.users_per_round, 3, 4
    correlation = np.zeros((n, n))
    c = [1.0]
    for j in range(1, 4):
        c.append(c[-1] * (j - 1.5) / j)
    for i in range(n):
        for j in range(max(0, i - 3), i + 1):
            correlation[i, j] = c[i - j]
    strategy = np.linalg.inv(correlation)
    sensitivity = np.linalg.norm(sum(strategy[:, j * b] for j in range(k)))
    sigma = 0.600229  # σ(8, 1e-5) of the analytic Gaussian mechanism, Balle and Wang (2018)
    d = sum(p.numel() for p in model.parameters())
    source = GaussianSource(NoiseKey.from_seed(run.privacy.noise_seed), d, Domain.TRAINING)
    z = torch.stack([source.block(t, 0, d) for t in range(n)]).numpy()
    noise = run.privacy.clip_norm * sigma * sensitivity * (correlation @ z)
    schedule = schedule_of(run)
    for t in range(n):
        start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        total = torch.zeros(d, dtype=torch.float64)
        for u in schedule.cohort(t):
            nn.utils.vector_to_parameters(start.clone(), model.parameters())
            user = torch.optim.SGD(model.parameters(), lr=local.learning_rate)
            owned = dataset.owned[u]
            (order,) = owned[user_orders(0, t, str(dataset.user_ids[u]), owned.size, epochs=1)]
            for i in range(0, order.size, local.batch_size):
                rows = order[i : i + local.batch_size]
                user.zero_grad()
                nn.functional.cross_entropy(model(dataset.features[rows]), dataset.labels[rows]).backward()
                user.step()
            update = (nn.utils.parameters_to_vector(model.parameters()).detach() - start).to(torch.float64)
            total += update * min(1.0, run.privacy.clip_norm / float(update.norm()))
        mean = (total + torch.from_numpy(noise[t])) / m
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        offset = 0
        for p in model.parameters():
            p.grad = -mean[offset : offset + p.numel()].reshape(p.shape).to(torch.float32)
            offset += p.numel()
        server.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return run_small(tmp_path_factory.mktemp("slices") / "run", small_run(**KEYS))


def test_a_plain_loop_gives_the_same_model(slices: np.ndarray) -> None:
    # σ is given to six digits: 1e-6 of a noise of norm about 1 a round.
    np.testing.assert_allclose(reference_loop(small_run(**KEYS)), slices, atol=2e-5)
    assert np.abs(slices - small_run(**KEYS).task_source.build().model.initial().numpy()).max() > 0.1


def test_per_user_messages_give_the_same_model(slices: np.ndarray, tmp_path: Path) -> None:
    per_user = run_small(tmp_path / "run", small_run(**KEYS, messages="per-user"))
    np.testing.assert_allclose(per_user, slices, atol=TOLERANCE)


@pytest.mark.parametrize("workers", [2, 4])
def test_several_nodes_give_the_same_model(workers: int, slices: np.ndarray, tmp_path: Path) -> None:
    """The same bits: a user's update does not depend on who is trained beside it, and sums are exact."""
    split = run_small(tmp_path / "run", small_run(**KEYS, workers=workers))
    assert np.array_equal(split, slices)


def test_equal_updates_give_bit_identical_models_in_any_order_and_grouping(tmp_path: Path) -> None:
    """With updates that are the same bits on every path, the integer sum makes the models the same bits."""
    task = linear_task(24, 300)
    models = [
        run_small(tmp_path / str(i), small_run(task, **{**KEYS, "local_batch_size": 1}, **keys))
        for i, keys in enumerate(
            [
                {},
                {"workers": 2},
                {"workers": 5},
                {"messages": "per-user"},
                {"messages": "per-user", "workers": 4},
            ]
        )
    ]
    for other in models[1:3]:
        assert np.array_equal(models[0], other)
    assert np.array_equal(models[3], models[4])
    # A per-user message carries float32, a slice the integers themselves: one rounding of each update apart.
    np.testing.assert_allclose(models[3], models[0], atol=math.ulp(1.0) * 2**29 * 12)
