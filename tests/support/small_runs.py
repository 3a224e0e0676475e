"""Small runs for tests: tasks with known updates, sessions in a temporary directory, a recording
client.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

import fedmf
from fedmf.cohorts import CohortSchedule
from fedmf.data import InMemoryDataset
from fedmf.flower.apps import make_client_app
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.runs.loop import OnRound, RoundRecord, RoundReport
from fedmf.runs.run import Run
from fedmf.runs.session import Session
from fedmf.runs.tables.configuration import render_toml, run_of
from fedmf.training import LocalTrainer, Task, classification, regression

#: (request, reply) → the reply that is sent.
Tamper = Callable[[Message, Message], Message]

#: A run of seconds: 24 users, cohorts of 6, 12 rounds, so k = 3 and b = 4.
SMALL = {
    "users": 24,
    "rounds": 12,
    "cohort_size": 6,
    "noise_seed": 7,
    "hidden_units": 8,
    "local_batch_size": 32,
}


def _table(name: str, keys: str, prefix: str = "") -> dict[str, str]:
    return {prefix + key: f"{name}.{key}" for key in keys.split()}


#: What tests call keys: one word where a configuration has a table and a key.
KEYS = {
    "dataset": "data.kind",
    "data_path": "data.path",
    **_table("data", "users partition dirichlet_alpha test_fraction seed"),
    **_table("data", "feature_columns label_column user_column test_split input_shape"),
    **_table("data", "examples_per_user features classes"),
    "model": "model.kind",
    "hidden_units": "model.hidden_units",
    "schedule": "cohorts.kind",
    "cohort_size": "cohorts.users-per-round",
    **_table("cohorts", "rounds min_separation max_participations"),
    **_table("privacy", "epsilon delta adjacency clip_norm noise_seed amplified"),
    "mechanism": "mechanism.kind",
    **_table("mechanism", "bands workload second_moment_weight"),
    "server_optimizer": "server.kind",
    "second_moment": "server.second_form",
    "second_moment_blocks": "server.blocks",
    **_table("server", "learning_rate momentum schedule warmup weight_decay", "server_"),
    **_table("server", "beta1 beta2 eps relative_eps", "server_"),
    **_table("client", "epochs batch_size learning_rate momentum proximal engine", "local_"),
    **_table("client", "micro_batch", "local_"),
    **_table("execution", "messages workers worker_gpus round_timeout"),
    **_table("execution", "evaluate_every checkpoint_every output_dir"),
}


def dotted(**named: object) -> dict[str, object]:
    """Table keys of what tests call by one word; ``private=False`` is a run without noise."""
    keys: dict[str, object] = {}
    for name, value in named.items():
        if name == "private":
            keys["privacy.kind"] = "user-level" if value else "none"
        elif name == "noise_seed" and value == -1:  # a secret key
            continue
        elif name in KEYS:
            keys[KEYS[name].replace("_", "-")] = value
        else:
            before = keys.get("mechanism.params")
            pairs = filter(None, (before, f"{name}={value}"))
            keys["mechanism.params"] = ",".join(pairs)  # type: ignore[arg-type]
    return keys


def small_run(task: Task | None = None, **named: object) -> Run:
    """The small run with some keys replaced, and a task of its own if one is given."""
    run = run_of(dotted(**{**SMALL, **named}))
    return run if task is None else dataclasses.replace(run, task=task)


def write_config(path: Path, **overrides: object) -> Path:
    """The small run with four bands and some keys replaced, as a configuration file."""
    path.write_text(render_toml(small_run(**{"mechanism": "bisr", "bands": 4, **overrides})))
    return path


def schedule_of(run: Run) -> CohortSchedule:
    """The cohorts of a run whose seed is public."""
    return run.schedule(0)


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
    return classification(dataset, model, _output_as_loss)


def _output_as_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[..., 0]


def linear_regression(users: int, features: int, seed: int = 0) -> Task:
    """Users with one to three examples each, labels that are a noisy linear function, a linear
    model.
    """
    rng = np.random.default_rng(seed)
    sizes = 1 + np.arange(users) % 3
    rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    x = torch.from_numpy(rng.standard_normal((sizes.sum() + 5, features)).astype(np.float32))
    y = (
        x[:, :1]
        - 0.5 * x[:, 1:2]
        + torch.from_numpy(rng.normal(0, 0.1, (len(x), 1)).astype(np.float32))
    )
    names = tuple(f"u{u:03d}" for u in range(users))
    model = nn.Linear(features, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    return regression(InMemoryDataset(x[:-5], y[:-5], tuple(rows), names, x[-5:], y[-5:]), model)


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
    trainer = LocalTrainer(session.task, session.run.client, users=session.run.users_in_a_call)
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


def answering(inner: ClientApp, train: Tamper = lambda _, reply: reply) -> ClientApp:
    """A client app whose replies pass through ``train(request, reply)``."""
    outer = ClientApp()

    @outer.train()
    def _train(message: Message, context: Context) -> Message:
        return train(message, inner(message, context))

    @outer.query()
    def _query(message: Message, context: Context) -> Message:
        return inner(message, context)

    return outer


def tampering(inner: ClientApp, tamper: Tamper) -> ClientApp:
    """A client app whose train replies pass through ``tamper(request, reply)``."""
    return answering(inner, train=tamper)


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


def seeing(on_report: Callable[[RoundReport], object]) -> OnRound:
    """A callback that hands on the operator's report of each round of this process."""

    def told(record: RoundRecord) -> None:
        if record.report is not None:
            on_report(record.report)

    return told


def run_small(
    path: Path,
    run: Run,
    client: Callable[[Session], ClientApp] = client_for,
    on_report: Callable[[RoundReport], None] = lambda _: None,
) -> np.ndarray:
    """Run to the horizon on the in-process grid; returns the final model."""
    with fedmf.start(run, path) as session:
        grid = InProcessGrid(client(session), nodes=run.execution.workers)
        run_on_grid(session, grid, seeing(on_report))
        return session.server.parameters.numpy().copy()
