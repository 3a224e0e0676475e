"""An app around the client code of a run: what a wrapped strategy must end with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.runs.run import Run
from fedmf.statements.privacy import UserLevel
from fedmf.training import LocalTrainer
from support.small_runs import linear_regression

TASK = linear_regression(24, 5)


def wrapped(run: Run, path: Path, **options: object) -> CorrelatedNoise:
    """The strategy whose arguments are the values of a run."""
    privacy = run.privacy
    assert isinstance(privacy, UserLevel)
    arguments = {
        "users": run.task_source.users,
        "mechanism": run.mechanism_config,
        "run_dir": path,
        "server_optimizer": run.server,
        "extra_releases": run.extra_releases,
        "clipping": run.clipping,
    }
    arguments |= options
    return CorrelatedNoise(FedAvg(), privacy, run.cohorts, **arguments)  # type: ignore[arg-type]


def local_clients(run: Run) -> ClientApp:
    """An app whose node p trains user p as the run does."""
    trainer = LocalTrainer(TASK, run.client)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received = message.content["arrays"]
        config = message.content["config"]
        assert isinstance(received, ArrayRecord)
        values = {name: torch.from_numpy(array.numpy().copy()) for name, array in received.items()}
        flat = TASK.model.flatten(values)
        user = int(context.node_config["partition-id"])  # type: ignore[index]
        t = int(config["server-round"]) - 1  # type: ignore[index]
        ids = [TASK.dataset.user_ids[user]]
        update = trainer.updates(flat, ids, t)[0]  # type: ignore[attr-defined]
        sent = {
            name: Array(tensor.numpy())
            for name, tensor in TASK.model.unflatten(flat + update).items()
        }
        content = {"arrays": ArrayRecord(sent), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def same_as_a_run(run: Run, path: Path) -> None:
    """Models agree up to the float32 rounding of what clients send; statements agree in what they
    promise.
    """
    expected = fedmf.simulate(run, path / "run")
    strategy = wrapped(run, path / "app")
    grid = InProcessGrid(local_clients(run), nodes=run.task_source.users)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(TASK.model.module.state_dict()))
    assert result.arrays is not None
    mine = np.concatenate([array.numpy().reshape(-1) for array in result.arrays.values()])
    np.testing.assert_allclose(mine, expected.parameters.numpy(), atol=2e-5)
    theirs = expected.statement.to_dict()
    ours = strategy.statement().to_dict()
    promised = [
        "noise_multiplier",
        "epsilon",
        "sampling",
        "mechanism",
        "params",
        "sensitivity",
        "noise_std",
    ]
    assert {name: ours[name] for name in promised} == {name: theirs[name] for name in promised}
    strategy.close()
