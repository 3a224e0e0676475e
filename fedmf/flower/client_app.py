"""The client app: says which users a node serves, trains them, clips, replies; evaluates if asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmf.flower.federated_evaluation import evaluation_reply
from fedmf.flower.messages import (
    asks_for_roster,
    hosted_users_reply,
    read_request,
    roster_reply,
    slice_reply,
    user_reply,
)
from fedmf.flower.private_evaluation import private_reply
from fedmf.runs import Scalar, clipped_sums, local_trainer, run_of
from fedmf.training import ClippedSums, FixedPointSum, Trainer, evaluate_users

__all__ = ["app", "make_client_app"]


def make_client_app(trainer_of: Callable[[Context], tuple[Trainer, ClippedSums]]) -> ClientApp:
    """A client app for any task.

    Args:
        trainer_of: from a Flower context to the node's local trainer and how updates are clipped and summed.
            A node with ``partition-id`` i of ``num-partitions`` N serves the users whose index is i modulo N,
            and in a simulation any user.
    """
    client_app = ClientApp()

    @client_app.query()
    def query(message: Message, context: Context) -> Message:
        trainer, _ = trainer_of(context)
        users = trainer.task.dataset.user_ids
        if asks_for_roster(message):
            return roster_reply(message, users)
        part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
        return hosted_users_reply(message, users[part::parts])

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        trainer, sums = trainer_of(context)
        request = read_request(message)
        if request.as_slice:
            total = sums.empty(trainer.task.device)
            failures = trainer.add_updates(request.parameters, request.users, request.t, total)
            return slice_reply(message, request.t, request.users, total.parts, failures)
        (user,) = request.users
        clipped = FixedPointSum(sums.dimension, sums.clip_norm, trainer.task.device)
        failures = trainer.add_updates(request.parameters, [user], request.t, clipped)
        return user_reply(message, request.t, user, clipped.total().to(torch.float32), failures)

    @client_app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        trainer, _ = trainer_of(context)
        request = read_request(message)
        if request.loss_bound is not None:
            return private_reply(message, request, trainer)
        totals = evaluate_users(trainer.task, request.parameters, request.users)
        return evaluation_reply(message, request.t, request.users, totals)

    return client_app


@lru_cache(maxsize=2)
def cached_trainer(items: tuple[tuple[str, Scalar], ...]) -> tuple[Trainer, ClippedSums]:
    """The trainer and sums of a configuration's sorted items, built once in each worker process."""
    run = run_of(dict(items))
    # Ray shows an actor only the GPU it reserved, which is then the first.
    task = run.task_source.build().to("cuda" if run.execution.worker_gpus > 0 else "cpu")
    return local_trainer(run, task), clipped_sums(run, task)


def _trainer_from_run_config(context: Context) -> tuple[Trainer, ClippedSums]:
    return cached_trainer(tuple(sorted(context.run_config.items())))


#: What pyproject.toml names as the Flower client app.
app = make_client_app(_trainer_from_run_config)
