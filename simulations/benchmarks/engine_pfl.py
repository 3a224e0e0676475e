"""The users of `engine.py` trained by pfl (apple/pfl-research) as its tutorials set it up.

Started by `engine.py --pfl PYTHON`; that Python needs pfl and what fedmf needs. Federated averaging with the
Gaussian mechanism of noise multiplier 1, without evaluation. A turn is a central iteration.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import torch
from engine import BATCH, EXAMPLES, LOCAL, task_of
from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore[reportMissingImports]
from pfl.algorithm.federated_averaging import FederatedAveraging  # pyright: ignore[reportMissingImports]
from pfl.callback.base import TrainingProcessCallback  # pyright: ignore[reportMissingImports]
from pfl.data.dataset import Dataset  # pyright: ignore[reportMissingImports]
from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
from pfl.hyperparam.base import NNTrainHyperParams  # pyright: ignore[reportMissingImports]
from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]
from pfl.privacy.gaussian_mechanism import GaussianMechanism  # pyright: ignore[reportMissingImports]
from pfl.privacy.privacy_mechanism import (  # pyright: ignore[reportMissingImports]
    CentrallyAppliedPrivacyMechanism,
)
from torch import Tensor, nn

MODELS = ("cnn",)


class Learner(nn.Module):
    """A module with the loss and metrics that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, features: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """The mean over examples."""
        return nn.functional.cross_entropy(self.inner(features), labels)

    def metrics(self, features: Tensor, labels: Tensor, eval: bool = False) -> dict[str, object]:
        """None are needed."""
        return {}


class Turns(TrainingProcessCallback):
    """Waits for a turn after each iteration and answers with the processor seconds of the next one."""

    def __init__(self) -> None:
        self.begun, self.asked = 0.0, False

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """An iteration has ended; stop where another model or nothing is asked for."""
        print(time.process_time() - self.begun if self.asked else "ready", flush=True)
        line = sys.stdin.readline().strip()
        while line and line != "turn":
            print("none", flush=True)
            line = sys.stdin.readline().strip()
        self.begun, self.asked = time.process_time(), True
        return not line, Metrics()


def run(model: str, users: int) -> None:
    """Train until nothing more is asked for."""
    task = task_of(model, users)
    features, labels = task.dataset.examples(torch.arange(users).numpy())
    rows, in_turn = [slice(u * EXAMPLES, (u + 1) * EXAMPLES) for u in range(users)], itertools.count()
    data = FederatedDataset(
        lambda u: Dataset([features[rows[u]], labels[rows[u]]], user_id=str(u)),
        lambda: next(in_turn) % users,
    )
    module = Learner(task.model.module)
    learner = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**6,
            train_cohort_size=users,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[noise]),
        learner,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LOCAL.learning_rate, local_batch_size=BATCH
        ),
        callbacks=[Turns()],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Answer `Other.ask` of `engine.py`."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        model, users = json.loads(line)
        if model in MODELS:
            run(model, users)
        else:
            print("none", flush=True)


if __name__ == "__main__":
    main()
