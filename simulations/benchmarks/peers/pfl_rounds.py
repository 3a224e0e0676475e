"""Rounds of `pfl` (apple/pfl-research) as its tutorials set them up, run by a Python that has it.

Federated averaging with the Gaussian mechanism; no evaluation, no other callbacks. With several processes
(torchrun) each trains its share of the cohort.
"""

from __future__ import annotations

import itertools
import json
import time
from types import ModuleType

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

__all__ = ["print_rounds"]


class Learner(nn.Module):
    """A module with the loss and metrics that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, features: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """What local SGD minimises: the mean over examples, and positions where there are any."""
        return nn.functional.cross_entropy(self.inner(features).flatten(0, -2), labels.flatten())

    def metrics(self, features: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> dict:
        """None are needed."""
        return {}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round begins."""
        self.times = [time.perf_counter()]
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round has ended."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def print_rounds(
    numbers: ModuleType, inner: nn.Module, features: Tensor, labels: Tensor, examples: int, batch: int
) -> None:
    """Train and print the seconds of each round as JSON.

    Args:
        numbers: the workload's: users, cohort, rounds, rates, clip norm and noise.
        inner: the model.
        features, labels: user u owns rows u·examples … (u + 1)·examples − 1.
        examples: of each user.
        batch: examples in a step.
    """
    rows = {u: slice(u * examples, (u + 1) * examples) for u in range(numbers.USERS)}
    in_turn = itertools.cycle(range(numbers.USERS))
    data = FederatedDataset(
        lambda u: Dataset([features[rows[u]], labels[rows[u]]], user_id=str(u)), lambda: next(in_turn)
    )
    model = Learner(inner)
    learner = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(numbers.CLIP_NORM, numbers.NOISE_MULTIPLIER))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=numbers.WARM_UP + numbers.ROUNDS,
            evaluation_frequency=10**6,
            train_cohort_size=numbers.COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[noise]),
        learner,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=numbers.LEARNING_RATE, local_batch_size=batch
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        seconds = [after - before for before, after in itertools.pairwise(clock.times)]
        print(json.dumps({"seconds": seconds}))
