"""The client app: says which users a node serves, trains them, clips, replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmf.data import OnNodes
from fedmf.errors import ConfigError
from fedmf.flower.messages import (
    answer_reply,
    asks_for_roster,
    hosted_users_reply,
    read_request,
    roster_reply,
)
from fedmf.runs import NamedTask, Scalar, clipped_sums, run_of
from fedmf.training import ClippedSums, LocalTrainer


def share_of(context: Context, users: Sequence[str]) -> Sequence[str]:
    """Of the users of a task that every node has whole: those whose index is ``partition-id`` modulo
    ``num-partitions``."""
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return users[part::parts]


def make_client_app(
    trainer_of: Callable[[Context], tuple[LocalTrainer, ClippedSums]],
    hosted: Callable[[Context, Sequence[str]], Sequence[str]] = share_of,
) -> ClientApp:
    """A client app for any task.

    Args:
        trainer_of: from a Flower context to the node's local trainer and how updates are clipped and summed.
        hosted: from the context and the users of the trainer's task to those that the node says it serves; in
            a simulation it may be asked for any of the task.
    """
    client_app = ClientApp()

    @client_app.query()
    def query(message: Message, context: Context) -> Message:
        trainer, _ = trainer_of(context)
        users = trainer.task.dataset.user_ids
        if asks_for_roster(message):
            return roster_reply(message, users)
        return hosted_users_reply(message, hosted(context, users))

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        trainer, sums = trainer_of(context)
        request = read_request(message)
        return answer_reply(message, request.t, request.trained(trainer, sums))

    return client_app


def all_of(context: Context, users: Sequence[str]) -> Sequence[str]:
    """Of the users of a node's own task: all."""
    del context
    return users


@lru_cache(maxsize=2)
def cached_trainer(
    items: tuple[tuple[str, Scalar], ...], path: str = "", roster: str = "", schema: str = ""
) -> tuple[LocalTrainer, ClippedSums]:
    """The trainer and sums of a configuration's sorted items, built once in each worker process.

    Args:
        items: of the run config.
        path: where data are that stay on this node, see `OnNodes.here`.
        roster: who of them may be served from here.
        schema: where the schema is on this node.
    """
    run = run_of(dict(items))
    source = run.task_source
    if isinstance(source, NamedTask) and isinstance(source.data, OnNodes):
        here = dataclasses.replace(source, data=source.data.here(path, roster, schema))
        run = dataclasses.replace(run, task=here)
    elif path or roster or schema:
        raise ConfigError(
            "data-path, data-roster and data-schema (of the node config) must be left out unless [data] "
            f"kind is {OnNodes.kind!r}; got {path or roster or schema!r}."
        )
    # Ray shows an actor only the GPU it reserved, which is then the first.
    task = run.task_source.build().to("cuda" if run.execution.worker_gpus > 0 else "cpu")
    return LocalTrainer(task, run.client), clipped_sums(run, task)


def _trainer_from_configs(context: Context) -> tuple[LocalTrainer, ClippedSums]:
    places = (str(context.node_config.get(f"data-{name}", "")) for name in ("path", "roster", "schema"))
    return cached_trainer(tuple(sorted(context.run_config.items())), *places)


def _hosted_by_config(context: Context, users: Sequence[str]) -> Sequence[str]:
    hosted = all_of if context.run_config.get("data.kind") == OnNodes.kind else share_of
    return hosted(context, users)


#: What pyproject.toml names as the Flower client app.
app = make_client_app(_trainer_from_configs, _hosted_by_config)
