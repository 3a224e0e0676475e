"""The users of `engine.py` trained by other libraries that use torch, as their tutorials set them
up.

Started by `engine.py --peers NAME`; this Python needs the library and what fedmf needs. pfl, Flower
and Opake train users, by federated averaging without evaluation; Opacus has no users and takes
private steps on their examples, each example clipped. Noise of multiplier 1 is added where the
library does both together. Flower's messages are handed over in this process, without Ray or a
network.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from engine import BATCH, EXAMPLES, LOCAL, serve, task_of
from torch import Tensor, nn

from fedmf.training import Task

Train = Callable[[], object]


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


def pfl(task: Task, features: Tensor, labels: Tensor) -> Train:
    """A central iteration; the first, which pfl evaluates, is the one that warms up."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    users = len(features)
    in_turn = itertools.count()
    data = FederatedDataset(
        lambda u: Dataset([features[u], labels[u]], user_id=str(u)), lambda: next(in_turn) % users
    )
    module = Learner(task.model.module)
    learner = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    algorithm = FederatedAveraging()
    backend = SimulatedBackend(data, data, postprocessors=[noise])
    start = NNAlgorithmParams(
        central_num_iterations=0,
        evaluation_frequency=10**6,
        train_cohort_size=users,
        val_cohort_size=0,
    )
    rate = LOCAL.learning_rate
    last = itertools.count(1)
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=rate, local_batch_size=BATCH)
    return lambda: algorithm.run(
        replace(start, central_num_iterations=next(last)),
        backend,
        learner,
        local,
        send_metrics_to_platform=False,
    )


def flower(task: Task, features: Tensor, labels: Tensor) -> Train:
    """A round of FedAvg under Flower's wrapper for differential privacy, a client app for each
    user.
    """
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    from fedmf.flower import InProcessGrid

    logging.disable(logging.INFO)
    module = task.model.module
    app = ClientApp()
    users = len(features)
    optimizer = torch.optim.SGD(module.parameters(), LOCAL.learning_rate)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        module.load_state_dict(state)
        for rows in torch.randperm(EXAMPLES).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features[user][rows]), labels[user][rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": EXAMPLES})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, users)
    grid = InProcessGrid(app, nodes=users)
    start = ArrayRecord(module.state_dict())
    return lambda: strategy.start(grid=grid, initial_arrays=start, num_rounds=1)


def opake(task: Task, features: Tensor, labels: Tensor) -> Train:
    """Its transformation that clips and sums what any function makes of each part of a batch."""
    from opake.dpftrl.clipping.fun import clipped_fun

    module = task.model.module
    start = {name: p.detach().clone() for name, p in module.named_parameters()}

    def loss(p: Any, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(module, p, x), y)

    def update(x: Tensor, y: Tensor) -> Any:
        p = start
        for rows in (slice(i, i + BATCH) for i in range(0, EXAMPLES, BATCH)):
            slopes = torch.func.grad(loss)(p, x[rows], y[rows])
            p = {name: p[name] - LOCAL.learning_rate * slopes[name] for name in p}
        return {name: p[name] - start[name] for name in p}

    clip, state = clipped_fun(update, batch_argnums=(0, 1), clipping_norm=1.0)
    return lambda: clip(features, labels, state=state)


def opacus(task: Task, features: Tensor, labels: Tensor) -> Train:
    """An epoch of batches of 64 examples on average."""
    from opacus import PrivacyEngine

    data = torch.utils.data.TensorDataset(features.flatten(0, 1), labels.flatten())
    loader = torch.utils.data.DataLoader(data, batch_size=64)
    optimizer = torch.optim.SGD(task.model.module.parameters(), LOCAL.learning_rate)
    module, private, loader = PrivacyEngine().make_private(
        module=task.model.module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    def train() -> None:
        for x, y in loader:
            private.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            private.step()

    return train


def main() -> None:
    """Answer `Other.ask` of `engine.py` for the library that the command names."""
    torch.set_num_threads(1)
    library = {"pfl": pfl, "flwr": flower, "opake": opake, "opacus": opacus}[sys.argv[1]]

    def make(model: str, users: int) -> Train:
        task = task_of(model, users)
        features, labels = task.dataset.examples(np.arange(users))
        return library(task, features.unflatten(0, (users, EXAMPLES)), labels.view(users, EXAMPLES))

    serve(make)


if __name__ == "__main__":
    main()
