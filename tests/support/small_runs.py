"""Small runs for tests: tasks with known updates, sessions in a temporary directory, a recording client."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedmf.data.memory import InMemoryDataset
from fedmf.flower.client_app import local_trainer, make_client_app
from fedmf.flower.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.flower.strategy import RoundReport
from fedmf.models.flat_model import FlatModel
from fedmf.runs.config import Config
from fedmf.runs.session import Session
from fedmf.training.task import Task

#: A run of seconds: 24 users, cohorts of 6, 12 rounds, so k = 3 and b = 4.
SMALL = {
    "users": 24,
    "rounds": 12,
    "cohort-size": 6,
    "noise-seed": 7,
    "hidden-units": 8,
    "local-batch-size": 32,
}


def small_config(**overrides: object) -> Config:
    """The small run with some keys replaced; underscores stand for dashes."""
    return Config.from_mapping(
        {**SMALL, **{key.replace("_", "-"): value for key, value in overrides.items()}}
    )


def linear_task(users: int, dimension: int, seed: int = 0) -> Task:
    """A task whose updates do not depend on the model: the loss of example x is its output θ·x."""
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.standard_normal((users, dimension)).astype(np.float32))
    model = nn.Linear(dimension, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    dataset = InMemoryDataset(
        features=features,
        labels=torch.zeros(users, dtype=torch.int64),
        owned=tuple(np.array([u]) for u in range(users)),
        user_ids=tuple(f"u{u:03d}" for u in range(users)),
        test_features=features[:2],
        test_labels=torch.zeros(2, dtype=torch.int64),
        classes=1,
    )
    return Task(dataset, FlatModel(model), _output_as_loss)


def _output_as_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[..., 0]


class Recorder:
    """What an outsider sees: the model that each round's messages carry."""

    def __init__(self) -> None:
        self.models: dict[int, np.ndarray] = {}

    def note(self, message: Message) -> None:
        if message.metadata.message_type == "train":
            t = int(message.content.config_records["config"]["round"])
            self.models[t] = message.content.array_records["arrays"]["parameters"].numpy().copy()


def client_for(session: Session, recorder: Recorder | None = None) -> ClientApp:
    """The client app of a session, optionally watched."""
    trainer = local_trainer(session.config, session.task)
    inner = make_client_app(lambda _: (trainer, session.sums))
    return inner if recorder is None else watched(inner, recorder.note)


def watched(inner: ClientApp, before: Callable[[Message], None]) -> ClientApp:
    """A client app that shows every message to ``before`` and then handles it as usual."""
    outer = ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        before(message)
        return inner(message, context)

    @outer.query()
    def query(message: Message, context: Context) -> Message:
        return inner(message, context)

    return outer


def tampering(inner: ClientApp, tamper: Callable[[Message, Message], Message]) -> ClientApp:
    """A client app whose train replies pass through ``tamper(request, reply)``."""
    outer = ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        return tamper(message, inner(message, context))

    @outer.query()
    def query(message: Message, context: Context) -> Message:
        return inner(message, context)

    return outer


def reply_with(request: Message, reply: Message, **changes: object) -> Message:
    """The reply with other contents: ``array`` (name, ndarray) or config entries."""
    content = reply.content
    if "array" in changes:
        name, value = changes.pop("array")  # type: ignore[misc]
        from flwr.app import Array

        content["arrays"] = ArrayRecord({name: Array(value)})
    config = dict(content.config_records["config"])
    content["config"] = ConfigRecord({**config, **changes})  # type: ignore[dict-item]
    return Message(content, reply_to=request)


def run_small(
    path: Path,
    config: Config,
    task: Task | None = None,
    client: Callable[[Session], ClientApp] = client_for,
    on_report: Callable[[RoundReport], None] = lambda _: None,
) -> np.ndarray:
    """Run to the horizon on the in-process grid; returns the final model."""
    with Session.start(path, config, task) as session:
        grid = InProcessGrid(client(session), nodes=config.workers)
        run_on_grid(session, grid, lambda report, _row: on_report(report))
        return session.server.parameters.numpy().copy()
