"""The same run as a Flower app: clients that train as the run does, `CorrelatedNoise` around
FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from support.pair_runs import RecordedPair
from torch import Tensor

from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.ledger.ledger import Ledger
from fedmf.runs.run import Run
from fedmf.statements.privacy import UserLevel
from fedmf.training import LocalTrainer

from .subjects import of_parts


def wrapped(run: Run, path: Path) -> CorrelatedNoise:
    """The strategy whose arguments are the values of a run."""
    privacy = run.privacy
    assert isinstance(privacy, UserLevel)
    return CorrelatedNoise(
        FedAvg(),
        privacy,
        run.cohorts,
        users=run.task_source.users,
        mechanism=run.mechanism_config,
        run_dir=path,
        server_optimizer=run.server,
        clipping=run.clipping,
        extra_releases=run.extra_releases,
    )


def clients(run: Run) -> ClientApp:
    """An app whose node p trains user p as the run does."""
    task = run.task_source.build()
    app = ClientApp()
    trainer = LocalTrainer(task, run.client)

    def received(message: Message, context: Context) -> tuple[Tensor, str]:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        values = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        return (
            task.model.flatten(values),
            task.dataset.user_ids[int(context.node_config["partition-id"])],
        )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        flat, user = received(message, context)
        t = int(message.content["config"]["server-round"]) - 1  # type: ignore[index]
        update = trainer.updates(flat, [user], t)[0]  # type: ignore[attr-defined]
        sent = {
            name: Array(tensor.numpy())
            for name, tensor in task.model.unflatten(flat + update).items()
        }
        content = {"arrays": ArrayRecord(sent), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def carried_out_wrapped(
    run: Run, path: Path, promised: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Numbers released by the app of a run, and facts that it shares with the run."""
    task = run.task_source.build()
    strategy = wrapped(run, path)
    grid = InProcessGrid(clients(run), nodes=run.task_source.users)
    initial = task.model.unflatten(task.model.initial())
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord({n: Array(v.numpy()) for n, v in initial.items()})
    )
    assert result.arrays is not None
    values = {name: torch.from_numpy(array.numpy().copy()) for name, array in result.arrays.items()}
    numbers: dict[str, NDArray[Any]] = {"model": task.model.flatten(values).numpy()}
    statement = strategy.statement().to_dict()
    strategy.close()
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        numbers |= of_parts(run, ledger.metrics())
    if isinstance(run.server, RecordedPair):
        numbers["second moments"] = run.server.seconds()
    return numbers, {name: statement.get(name) for name in promised}
