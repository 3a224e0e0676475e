"""A workload in `pfl` (apple/pfl-research), run by a Python that has it.

Federated averaging with the Gaussian mechanism, as its tutorials set it up; no evaluation. With several
processes (torchrun) each trains its share of the cohort. Prints the seconds of each round as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import torch
import workload
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
from torch import nn


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.WORKLOADS, required=True)
    chosen = workload.WORKLOADS[parser.parse_args().model]
    features, labels = chosen.data()
    n = chosen.examples
    users = {u: [features[u * n : u * n + n], labels[u * n : u * n + n]] for u in range(workload.USERS)}
    in_turn = itertools.cycle(range(workload.USERS))
    data = FederatedDataset(lambda u: Dataset(users[u], user_id=str(u)), lambda: next(in_turn))
    model = Learner(chosen.made())
    learner = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(workload.CLIP_NORM, workload.NOISE_MULTIPLIER))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=workload.WARM_UP + workload.ROUNDS,
            evaluation_frequency=10**6,
            train_cohort_size=workload.COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[noise]),
        learner,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.LEARNING_RATE,
            local_batch_size=chosen.batch,
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        seconds = [after - before for before, after in itertools.pairwise(clock.times)]
        print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
