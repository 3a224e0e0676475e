"""Replies mutated from valid ones, in both message modes of our strategy and around a strategy of Flower's.

    python simulations/flower/hostile_replies.py [--replies 20000] [--modes ...] [--seed 0] [--json]

Every reply goes through what a server app of a deployment runs: it lies as objects on a link, is pulled,
unpacked, checked and summed. Half of the nodes are honest. In each round the exact integer sum is compared
with that of the honest users' updates alone. A row counts, for a mode and a mutation, how many replies there
were, how many were refused, how many were taken although they are not what was sent, and how many honest
ones were lost. Exit code 1 if any was taken or lost, or a run ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.superlink.grid import HttpGrid
from rich.console import Console
from rich.table import Table

from fedmf.flower import CorrelatedNoise, UsersSayWho
from fedmf.flower.compat import claim_task_identity, empty_run, set_message_id
from fedmf.flower.messages import (
    asks_for_roster,
    hosted_users_reply,
    read_request,
    roster_reply,
    slice_reply,
    user_reply,
)
from fedmf.flower.simulation import run_on_grid, worker_pool
from fedmf.runs import Execution, PrivateServer, run_of
from fedmf.training import FixedPointSum

MODES = ("per-user", "slice", "wrapper")
NODES, CLIP, FIRST = 100, 1.0, 2**63 + 7
#: Mutations that may leave a reply as good as it was: then it must count as what it was.
HARMLESS = frozenset({"none", "bits of an object", "another child", "sent twice"})
Draw = random.Random


def with_array(reply: Message, array: Array, name: str | None = None) -> Message:
    """The reply with another array in place of its first."""
    record = next(iter(reply.content.array_records.values()))
    first = next(iter(record))
    if name is not None:
        del record[first]
    record[name or first] = array
    return reply


def with_config(reply: Message, **values: Any) -> Message:
    """The reply with other values in its config."""
    reply.content["config"] = ConfigRecord({**reply.content.config_records["config"], **values})
    return reply


def held(reply: Message) -> np.ndarray:
    """The numbers of its first array."""
    return next(iter(next(iter(reply.content.array_records.values())).values())).numpy().copy()


def spoiled(value: float) -> Callable[[Message, Draw], Message]:
    """One number of the array replaced."""

    def change(reply: Message, draw: Draw) -> Message:
        numbers = held(reply)
        if numbers.dtype.kind != "f":
            numbers = numbers.astype(np.float64)
        numbers.reshape(-1)[draw.randrange(numbers.size)] = value
        return with_array(reply, Array(numbers))

    return change


def _lying(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    inside = draw.choice([numbers.astype(np.complex64), numbers.reshape(-1, 1, 1, 1), numbers.view(np.uint8)])
    return with_array(reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", Array(inside).data))


def _bytes(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    data = Array(numbers).data
    size = draw.choice([0, 1, 100, len(data) - 1, len(data) + 1, 2 * len(data) + 5000])
    other = (data + draw.randbytes(size))[-size:] if size else b""
    return with_array(reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", other))


def _shape(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    flat = numbers.reshape(-1)
    other = draw.choice([flat[:-1], np.append(flat, flat[:1]), numbers[None], flat[:0], np.tile(flat, 3)])
    return with_array(reply, Array(np.ascontiguousarray(other)))


def _type(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    kinds = ["complex64", "bool", "uint8", "S4", ">f4", ">i8", "datetime64[s]"]
    return with_array(reply, Array(numbers.real.astype("int64").astype(draw.choice(kinds))))


def _declared(reply: Message, draw: Draw) -> Message:
    array = Array(held(reply))
    dtype, shape, stype = array.dtype, array.shape, array.stype
    which = draw.randrange(3)
    dtype = draw.choice(["", "object", "float33", "x" * 10**5]) if which == 0 else dtype
    shape = draw.choice([(), (-1,), (10**18,), (0,), (2**70,)]) if which == 1 else shape
    stype = draw.choice(["", "pickle", "torch.Tensor"]) if which == 2 else stype
    return with_array(reply, Array(dtype, shape, stype, array.data))


def _pickled(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    return with_array(
        reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", b"\x80\x04cos\nsystem\n.")
    )


def _error(reply: Message, draw: Draw) -> Message:
    answer = Message(
        Error(draw.choice([-1, 0, 1, 2, 3, 4, 5, 8, 2**31 - 1]), "\x1b[2J" * 999), reply_to=_ask(reply)
    )
    return answer


def _round(reply: Message, draw: Draw) -> Message:
    t = int(str(reply.content.config_records["config"]["round"]))
    return with_config(
        reply, round=draw.choice([t + 1, t - 1, -(2**62), 2**62, float(t), str(t), [t], b"", True])
    )


def _users(reply: Message, draw: Draw) -> Message:
    users = list(reply.content.config_records["config"]["users"])  # type: ignore[arg-type]
    others: list[Any] = [
        [],
        [*users, "stranger"],
        users * 2,
        [1] * len(users),
        "\n".join(users),
        3,
        ["x" * 10**5],
    ]
    return with_config(reply, users=draw.choice([*others, users[1:], ["u999999"] * len(users)]))


def _dropped(reply: Message, draw: Draw) -> Message:
    del reply.content["config" if draw.random() < 0.5 else "arrays"]
    return reply


def _no_arrays(reply: Message, draw: Draw) -> Message:
    for name in list(reply.content.array_records):
        del reply.content[name]
    return reply


def _ask(reply: Message) -> Message:
    """The message that a reply answers, as far as answering it again needs."""
    return reply.__dict__["_asked"]


#: Changes of what a reply says. Each makes it wrong whatever was drawn.
OF_ARRAYS: dict[str, Callable[[Message, Draw], Message]] = {
    "NaN": spoiled(float("nan")),
    "infinity": spoiled(float("inf")),
    "another shape": _shape,
    "another type": _type,
    "declared otherwise": _declared,
    "another array inside": _lying,
    "bytes missing or more": _bytes,
    "pickle": _pickled,
    "another name": lambda reply, draw: with_array(reply, Array(held(reply)), f"name{draw.random()}"),
    "no arrays": _no_arrays,
    "error": _error,
}
OF_CONFIG: dict[str, Callable[[Message, Draw], Message]] = {
    "another round": _round,
    "other users": _users,
    "a record missing": _dropped,
}


def _bits(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """Bits of any object but the numbers themselves."""
    victim = draw.choice(list(objects))
    data = bytearray(objects[victim])
    for _ in range(draw.choice([1, 1, 3, 20])):
        place = draw.randrange(min(len(data), 140) if data.startswith(b"ArrayChunk") else len(data))
        data[place] ^= 1 << draw.randrange(8)
    objects[victim] = bytes(data)
    return root


def _cut(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    victim = draw.choice(list(objects))
    objects[victim] = objects[victim][: draw.randrange(len(objects[victim]))]
    return root


def _missing(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    objects[draw.choice(list(objects))] = b""
    return root


def _foreign_child(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """An object that names another one of the reply as its child."""
    names = list(objects)
    for _ in range(100):
        parent, old, new = (draw.choice(names) for _ in range(3))
        if old != new and old.encode() in objects[parent]:
            objects[parent] = objects[parent].replace(old.encode(), new.encode())
            return root
    objects[root] = b""
    return root


def _not_a_message(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    return draw.choice([name for name in objects if name != root])


def _bomb(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """An array that names its one chunk very often."""
    for name, content in objects.items():
        if content.startswith(b"Array "):
            head, body = content.split(b"\0", 1)
            described = {**json.loads(body), "arraychunk_ids": [0] * 3 * 10**5}
            body = json.dumps(described).encode()
            objects[name] = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()]) + b"\0" + body
            break
    return root


#: Changes of the objects in which a reply lies on the link.
OF_OBJECTS: dict[str, Callable[[dict[str, bytes], str, Draw], str]] = {
    "bits of an object": _bits,
    "an object cut": _cut,
    "an object missing": _missing,
    "another child": _foreign_child,
    "not a message": _not_a_message,
    "a chunk named often": _bomb,
}
#: Changes of what only the link should say, and one of how often it says it.
OF_THE_LINK = ("answers another's message", "says another node", "sent twice")


class HostileLink(HttpGrid):
    """A link whose nodes answer at once; every other one changes what it sends.

    Args:
        answer: (message, place of the node) → its honest reply.
        contribution: (message, honest reply) → what it adds to the sum, in units of fixed point.
        mutations: what may be done to a reply.
        draw: decides.
    """

    def __init__(
        self,
        answer: Callable[[Message, int], Message],
        contribution: Callable[[Message, Message], torch.Tensor],
        mutations: list[str],
        draw: Draw,
    ) -> None:
        claim_task_identity()
        super().__init__(token="none")
        self.set_run(empty_run())
        self._answer, self._contribution, self._draw = answer, contribution, draw
        self._turn, self._ids = itertools.cycle(mutations), itertools.count(1)
        self._laid: dict[str, list[tuple[Any, Any]]] = {}
        self._objects: dict[str, bytes | None] = {}
        #: What was done in the last round of training: place of the node, mutation, honest contribution.
        self.done: list[tuple[Message, str, torch.Tensor]] = []

    @property
    def _runtime_client(self) -> Any:
        return SimpleNamespace(
            PullMessages=self._pull, PullObject=self._pull_object, ConfirmMessageReceived=lambda _: None
        )

    def get_node_ids(self) -> list[int]:
        """A hundred nodes."""
        return [FIRST + place for place in range(NODES)]

    def push_messages(self, messages: Any) -> list[str]:
        """Every node answers."""
        asked = list(messages)
        for message in asked:
            set_message_id(message, f"message-{next(self._ids)}")
        training = any(message.metadata.group_id not in ("who", "handshake") for message in asked)
        if training:
            self.done, self._objects = [], {}
        for message in asked:
            place = message.metadata.dst_node_id - FIRST
            reply = self._answer(message, place)
            if not training:
                self._lay(message, reply, "none", asked)
                continue
            mutation = next(self._turn) if place % 2 else "none"
            self.done.append((message, mutation, self._contribution(message, reply)))
            self._lay(message, reply, mutation, asked)
        return [message.metadata.message_id for message in asked]

    def _lay(self, message: Message, reply: Message, mutation: str, asked: list[Message]) -> None:
        draw = self._draw
        proto = message_to_proto(Message(RecordDict(), reply_to=message))
        if mutation in OF_ARRAYS or mutation in OF_CONFIG:
            reply.__dict__["_asked"] = message
            reply = (OF_ARRAYS | OF_CONFIG)[mutation](reply, draw)
        if mutation == "answers another's message":
            other = draw.choice([m for m in asked if m is not message])
            reply.metadata.__dict__["_reply_to_message_id"] = other.metadata.message_id
        if mutation == "says another node":
            reply.metadata.__dict__["_src_node_id"] = FIRST + draw.randrange(0, NODES, 2)
        contents = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
        tree, root = get_object_tree(reply), reply.object_id
        if mutation in OF_OBJECTS:
            root = OF_OBJECTS[mutation](contents, root, draw)
        names = self._store(contents)
        for item in iterate_object_tree(tree):
            item.object_id = names[item.object_id]
        proto.metadata.message_id = names[root]
        self._laid[message.metadata.message_id] = [(proto, tree)] * (2 if mutation == "sent twice" else 1)

    def _store(self, contents: dict[str, bytes]) -> dict[str, str]:
        """Objects go by their digests, as on a link, also after they were changed: old name to new."""
        names: dict[str, str] = {}
        for name, content in contents.items():  # children come before those that name them
            for old, new in names.items():
                content = content.replace(old.encode(), new.encode())
            names[name] = get_object_id(content) if content else f"missing-{next(self._ids)}"
            self._objects[names[name]] = content or None
        return names

    def _pull(self, request: Any) -> PullAppMessagesResponse:
        laid = [pair for name in request.message_ids for pair in self._laid.pop(name, [])]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in laid], message_object_trees=[tree for _, tree in laid]
        )

    def _pull_object(self, request: Any) -> Any:
        content = self._objects.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=True, object_content=content
        )


class Judge:
    """Counts what became of the replies of a mode.

    Args:
        mode: which.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong_sums = self.ended = 0
        self._released: tuple[torch.Tensor, set[str]] | None = None

    def watch(self, server: PrivateServer) -> None:
        """See every sum before it is released."""
        release = server.release

        def seen(total: FixedPointSum, present: list[str]) -> None:
            self._released = (total.fixed_point.clone(), set(present))
            release(total, present)

        server.release = seen  # type: ignore[method-assign]

    def judge(self, done: list[tuple[Message, str, torch.Tensor]], users_of: Any, failed: set[str]) -> None:
        """Compare the sum of a round with what should be in it."""
        assert self._released is not None
        total, present = self._released
        expected = torch.zeros_like(total)
        for message, mutation, contribution in done:
            users = set(users_of(message))
            used = users <= present and not users & failed
            expected += contribution * used
            self.counts[mutation, "replies"] += 1
            self.counts[mutation, "refused"] += not used
            self.counts[mutation, "taken"] += used and mutation not in HARMLESS
            self.counts[mutation, "lost"] += not used and mutation == "none"
        self.wrong_sums += not torch.equal(total, expected)

    @property
    def hostile(self) -> int:
        """How many replies were mutated."""
        return sum(
            n for (mutation, what), n in self.counts.items() if what == "replies" and mutation != "none"
        )

    @property
    def bad(self) -> int:
        """Taken, lost, wrong sums and ended runs."""
        return self.total("taken") + self.total("lost") + self.wrong_sums + self.ended

    def total(self, what: str) -> int:
        """Over all mutations."""
        return sum(n for (_, key), n in self.counts.items() if key == what)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each mutation."""
        for mutation in dict.fromkeys(name for name, _ in self.counts):
            values = {what: self.counts[mutation, what] for what in ("replies", "refused", "taken", "lost")}
            yield {"mode": self.mode, "mutation": mutation, **values}


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
            "data.kind": "synthetic", "data.users": 400, "data.features": 16, "data.classes": 4,
            "model.kind": "logistic", "cohorts.rounds": rounds, "cohorts.size": 200, "privacy.kind": "none",
            "privacy.clip-norm": CLIP, "execution.messages": judge.mode, "execution.refusals": 0,
            "execution.evaluate-every": 1000, "execution.checkpoint-every": 1000,
        }
    )  # fmt: skip
    with run.start(path) as session:
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
            total = FixedPointSum(d, CLIP)
            for user in request.users:
                total.add_updates(torch.from_numpy(update_of(place_of[user], d))[None])
            if request.as_slice:
                reply = slice_reply(message, request.t, request.users, total.parts)
            else:
                update = torch.from_numpy(update_of(place_of[request.users[0]], d))
                reply = user_reply(message, request.t, request.users[0], update)
            return in_bytes(reply)

        def users_of(message: Message) -> list[str]:
            return list(message.content.config_records["config"]["users"])  # type: ignore[arg-type]

        def contribution(message: Message, _: Message) -> torch.Tensor:
            return torch.stack([fixed(update_of(place_of[user], d)) for user in users_of(message)]).sum(0)

        link = HostileLink(answer, contribution, [*OF_ARRAYS, *OF_CONFIG, *OF_OBJECTS, *OF_THE_LINK], draw)
        judge.watch(session.server)
        run_on_grid(
            session,
            link,
            lambda report, _: judge.judge(link.done, users_of, {failure.user for failure in report.failures}),
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

    def contribution(message: Message, reply: Message) -> torch.Tensor:
        def flat(arrays: ArrayRecord) -> np.ndarray:
            return np.concatenate([array.numpy().astype(np.float64).reshape(-1) for array in arrays.values()])

        return fixed(
            flat(reply.content.array_records["arrays"]) - flat(message.content.array_records["arrays"])
        )

    strategy = CorrelatedNoise(
        FedAvg(), epsilon=50.0, delta=1e-5, clipping_norm=CLIP, num_users=NODES, users_per_round=50,
        num_rounds=rounds, mechanism="identity", noise_seed=1, run_dir=path, identity=UsersSayWho(roster),
        execution=Execution(messages="per-user", refusals=0),
    )  # fmt: skip
    arrays = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in shapes.items()})
    opened = strategy.begin(arrays)
    link = HostileLink(answer, contribution, [*OF_ARRAYS, *OF_OBJECTS, *OF_THE_LINK], draw)
    judge.watch(opened.server)

    def note(t: int, failures: Any) -> None:
        named = {failure.user for failure in failures}
        judge.judge(link.done, lambda message: [roster[message.metadata.dst_node_id - FIRST]], named)

    opened.note_failures = note  # type: ignore[method-assign]
    strategy.start(link, arrays, timeout=60.0)
    strategy.close()


def mutate(mode: str, replies: int, seed: int, rounds: int = 40) -> Judge:
    """So many mutated replies of a mode."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    judge, draw = Judge(mode), Draw(seed)
    one = wrapped_strategy if mode == "wrapper" else own_strategy
    while judge.hostile < replies and not judge.ended:
        with tempfile.TemporaryDirectory() as folder:
            try:
                one(judge, Path(folder) / "run", rounds, draw)
            except Exception as error:
                judge.ended += 1
                print(f"{mode}: run ended: {type(error).__name__}: {error}", file=sys.stderr)
    return judge


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replies", type=int, default=20_000, help="mutated replies of each mode, at least")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    judges = [mutate(mode, given.replies, given.seed) for mode in given.modes]
    if given.json:
        print(json.dumps([row for judge in judges for row in judge.rows()]))
    else:
        table = Table("mode", "mutation", "replies", "refused", "taken", "lost")
        for judge in judges:
            for row in judge.rows():
                table.add_row(*(f"{value:,}" if isinstance(value, int) else value for value in row.values()))
        Console().print(table)
        for judge in judges:
            Console().print(
                f"{judge.mode}: {judge.hostile:,} mutated replies, {judge.total('taken')} taken, "
                f"{judge.total('lost')} honest lost, {judge.wrong_sums} wrong sums, {judge.ended} ended runs"
            )
    return int(any(judge.bad for judge in judges))


if __name__ == "__main__":
    raise SystemExit(main())
