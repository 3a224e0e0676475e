"""Runs over a hostile link, in the message modes of our strategy and around a strategy of Flower's.

Every reply goes through what a server app of a deployment runs: it lies as objects on a link, is pulled,
unpacked, checked and summed. Half of the nodes are honest. In each round the exact integer sum is compared
with that of the honest users' updates alone.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import CorrelatedNoise, UsersSayWho
from fedmf.flower.messages import (
    answer_reply,
    asks_for_roster,
    hosted_users_reply,
    read_request,
    roster_reply,
)
from fedmf.flower.simulation import worker_pool
from fedmf.flower.strategy import run_on_grid
from fedmf.runs import Reply, run_of
from fedmf.training import FixedPointSum
from support.hostile.judge import Judge
from support.hostile.link import FIRST, NODES, OF_THE_LINK, Contributions, HostileLink
from support.hostile.objects import OF_OBJECTS
from support.hostile.replies import OF_ARRAYS, OF_CONFIG, OF_ROWS, Draw, named
from support.small_runs import seeing

CLIP = 1.0
#: Users asked in a round: three a node. A run asks nobody twice: whose reply was refused is asked alone.
PER_ROUND = 3 * NODES
#: Rows of several users a reply, of one, and sums.
FORMS: dict[str, dict[str, Any]] = {
    "per-user": {"execution.messages": "per-user"},
    "one-user": {"execution.messages": "per-user", "execution.users-per-message": 1},
    "slice": {"execution.messages": "slice"},
}


def update_of(place: int, dimension: int) -> np.ndarray:
    """A user's update: of norm above the clip for some."""
    x = np.random.default_rng([3, place]).standard_normal(dimension)
    return (x / np.linalg.norm(x) * (0.3 + place % 7 / 4)).astype(np.float32)


def fixed(row: np.ndarray) -> torch.Tensor:
    """What an update adds to the exact sum."""
    total = FixedPointSum(row.size, CLIP)
    total.add_updates(torch.from_numpy(row)[None])
    return total.fixed_point


def own_strategy(judge: Judge, path: Path, rounds: int, draw: Draw) -> None:
    """One run of fedmf's strategy."""
    run = run_of(
        {
            "data.kind": "synthetic", "data.users": PER_ROUND * rounds, "data.features": 16,
            "data.classes": 4, "model.kind": "logistic", "cohorts.rounds": rounds,
            "cohorts.users-per-round": PER_ROUND,
            "privacy.kind": "none", "privacy.clip-norm": CLIP, **FORMS[judge.mode],
            "execution.evaluate-every": 1000, "execution.checkpoint-every": 1000,
        }
    )  # fmt: skip
    with fedmf.start(run, path) as session:
        roster, d = list(session.task.dataset.user_ids), session.server.dimension
        place_of = {user: place for place, user in enumerate(roster)}

        def answer(message: Message, place: int) -> Message:
            if message.metadata.message_type == "query":
                roster_asked = asks_for_roster(message)
                return (
                    roster_reply(message, roster)
                    if roster_asked
                    else hosted_users_reply(message, roster[place::NODES])
                )
            request = read_request(message)
            updates = torch.from_numpy(np.stack([update_of(place_of[user], d) for user in request.users]))
            if not request.as_slice:
                return in_bytes(answer_reply(message, request.t, Reply(request.users, updates)))
            total = FixedPointSum(d, CLIP)
            total.add_updates(updates)
            return in_bytes(answer_reply(message, request.t, Reply(request.users, total.parts)))

        def contributions(message: Message, _: Message) -> Contributions:
            return {user: fixed(update_of(place_of[user], d)) for user in named(message)}

        mutations = [*OF_ARRAYS, *OF_CONFIG, *OF_OBJECTS, *OF_THE_LINK]
        link = HostileLink(answer, contributions, mutations + [*OF_ROWS] * (judge.mode == "per-user"), draw)
        judge.watch(session.server)
        run_on_grid(
            session,
            link,
            seeing(lambda report: judge.judge(link.done, {each.user for each in report.failures})),
            worker_pool(session) if judge.mode == "slice" else None,
        )


def in_bytes(reply: Message) -> Message:
    """The reply with ordinary arrays, as another process sends it."""
    for record in reply.content.array_records.values():
        for name in list(record):
            record[name] = Array(record[name].numpy())
    return reply


def wrapped_strategy(judge: Judge, path: Path, rounds: int, draw: Draw) -> None:
    """One run of a strategy of Flower's with our wrapper around it."""
    shapes = {"body": (6, 8), "bias": (6,), "head": (5,)}
    roster = [f"clinic-{place}" for place in range(NODES)]

    def answer(message: Message, place: int) -> Message:
        if message.metadata.group_id == "who":
            return Message(RecordDict({"a": ConfigRecord({"fedmf.user": roster[place]})}), reply_to=message)
        update, start, sent = update_of(place, 59), 0, {}
        for name, array in message.content.array_records["arrays"].items():
            value = array.numpy()
            sent[name] = Array(value + update[start : start + value.size].reshape(value.shape))
            start += value.size
        metrics = MetricRecord({"num-examples": place + 1})
        return Message(RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=message)

    def contributions(message: Message, reply: Message) -> Contributions:
        def flat(arrays: ArrayRecord) -> np.ndarray:
            return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])

        sent, came = (flat(one.content.array_records["arrays"]) for one in (message, reply))
        return {roster[message.metadata.dst_node_id - FIRST]: fixed(came - sent)}

    strategy = CorrelatedNoise(
        FedAvg(), epsilon=50.0, delta=1e-5, clipping_norm=CLIP, num_users=NODES, users_per_round=50,
        num_rounds=rounds, mechanism="identity", noise_seed=1, run_dir=path, identity=UsersSayWho(roster),
    )  # fmt: skip
    arrays = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in shapes.items()})
    opened = strategy.begin(arrays)
    link = HostileLink(answer, contributions, [*OF_ARRAYS, *OF_OBJECTS, *OF_THE_LINK], draw)
    judge.watch(opened.server)

    def note(t: int, failures: Any, present: int) -> None:
        judge.judge(link.done, {failure.user for failure in failures})

    opened.note_failures = note  # type: ignore[method-assign]
    strategy.start(link, arrays, timeout=60.0)
    strategy.close()


def mutate(mode: str, replies: int, seed: int, folder: Path, rounds: int) -> Judge:
    """So many mutated replies of a mode: per-user, one-user, slice, or wrapper."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    judge, draw = Judge(mode), Draw(seed)
    one = wrapped_strategy if mode == "wrapper" else own_strategy
    for number in range(100):
        if judge.hostile >= replies:
            break
        one(judge, folder / f"run{number}", rounds, draw)
    return judge
