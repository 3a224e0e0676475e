# ruff: noqa: E402
"""Every class of hostile reply once, through a real SuperLink, beside real SuperNodes that are honest.

    python simulations/flower/hostile_supernode.py [--classes NAME ...] [--rounds 2] [--honest 2] [--seed 0]
        [--json]

Flower's own SuperLink and SuperNodes run on loopback; their clients are those of an ordinary app. Each
hostile node registers, pulls and pushes as Flower's SuperNode does and sends what its class says. A class is
counted as taken if its user is in the sum although the reply is not what was sent; honest replies that are
not in the sum are lost. The released model is compared with the clipped updates of the users in the sum:
noise is so small that one more or less would be seen. Exit code 1 if anything was taken or lost, or the run
ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "hostile_app"), str(HERE.parents[1] / "tests")]

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supernode.fleet_http_connection import http_request_response
from hostile.judge import HARMLESS
from hostile.link import OF_THE_LINK
from hostile.objects import OF_OBJECTS
from hostile.replies import OF_ARRAYS, Draw
from hostile_app.task import CLIP, trained, update_of
from rich.console import Console
from rich.table import Table
from support.flower_network import SuperLink, flower_environment, flwr_run, superlink, supernodes

from fedmf import load_model
from fedmf.runs import FAILURES, opened_evidence

#: What a node may tell the link itself, beside what its reply says.
TO_THE_LINK = ("lies to the link of its node", "answers no message", "endless reason")
CLASSES = ("none", *OF_ARRAYS, *OF_OBJECTS, *OF_THE_LINK, *TO_THE_LINK)

#: Classes whose replies the link may not take, or that never become complete there.
UNSURE = frozenset({"error", *OF_OBJECTS, *TO_THE_LINK[:2]})


class HostileNode(threading.Thread):
    """A node that answers whatever it is asked, after honest ones, and spoils what it was asked to train.

    Args:
        address: of the link.
        place: of its user on the roster.
        mutation: its class.
        nodes: ids of all hostile nodes so far, by place.
        seed: of what is drawn.
        answered: folder in which honest nodes note each answer: none comes too late on a busy machine.
        honest: how many there are.
    """

    def __init__(
        self,
        address: str,
        place: int,
        mutation: str,
        nodes: dict[int, int],
        seed: int,
        answered: Path,
        honest: int,
    ) -> None:
        super().__init__(daemon=True)
        self._address, self._place, self._mutation = address, place, mutation
        self._nodes, self._draw = nodes, Draw(f"{seed}-{mutation}")
        self._answered, self._honest, self._rounds = answered, honest, 0
        self.stopped = threading.Event()
        #: Whether the link refused to take anything, in words.
        self.link_said: list[str] = []

    def run(self) -> None:
        """Ask the link for messages until stopped."""
        with contextlib.suppress(SystemExit), http_request_response(self._address, insecure=True) as link:
            node, receive, send, _, _, pull_object, push_object, confirm = link
            self._nodes[self._place] = node
            while not self.stopped.is_set():
                got = receive()
                if got is None:
                    time.sleep(0.1)
                    continue
                asked, tree = got
                run = asked.metadata.run_id
                message = pull_and_inflate_object_from_tree(
                    tree, partial(pull_object, run), partial(confirm, run), return_type=Message
                )
                message.metadata.__dict__["_message_id"] = asked.metadata.message_id
                try:
                    self._answer(message, send, partial(push_object, run))
                except Exception as error:
                    self.link_said.append(f"{type(error).__name__}: {error}"[:120])

    def _answer(self, message: Message, send: Any, push_object: Any) -> None:
        told = Message(RecordDict(), reply_to=message)
        arrays = message.content.array_records.get("arrays")
        if arrays is None:
            content = RecordDict({"config": ConfigRecord({"fedmf.user": str(self._place)})})
            return _push(Message(content, reply_to=message), told, send, push_object)
        self._rounds += 1
        while len([*self._answered.glob("*")]) < self._honest * self._rounds and not self.stopped.wait(0.1):
            pass
        content = {"arrays": trained(self._place, arrays), "metrics": MetricRecord({"num-examples": 3})}
        reply, draw, mutation = Message(RecordDict(content), reply_to=message), self._draw, self._mutation
        if mutation in OF_ARRAYS:
            reply.__dict__["_asked"] = message
            reply = OF_ARRAYS[mutation](reply, draw)
        if mutation == "endless reason":
            reason = "\x1b[2J" * 10**6
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        if mutation == "answers another's message":
            reply.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        if mutation == "answers no message":
            told.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        other = next((node for place, node in self._nodes.items() if place != self._place), 1)
        if mutation == "says another node":
            reply.metadata.__dict__["_src_node_id"] = other
        if mutation == "lies to the link of its node":
            told.metadata.__dict__["_src_node_id"] = other
        for _ in range(2 if mutation == "sent twice" else 1):
            _push(reply, told, send, push_object, OF_OBJECTS.get(mutation), draw)
        return None


def _push(
    reply: Message, told: Message, send: Any, push_object: Any, spoil: Any = None, draw: Any = None
) -> None:
    """Announce a reply to the link and push its objects under the digests of what they then hold."""
    contents = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
    tree, root = get_object_tree(reply), reply.object_id
    if spoil is not None:
        root = spoil(contents, root, draw)
    names: dict[str, str] = {}
    objects: dict[str, bytes] = {}
    for name, content in contents.items():  # children come before those that name them
        for old, new in names.items():
            content = content.replace(old.encode(), new.encode())
        names[name] = get_object_id(content or name.encode())
        if content:
            objects[names[name]] = content
    for item in iterate_object_tree(tree):
        item.object_id = names[item.object_id]
    told.metadata.__dict__["_message_id"] = names[root]
    wanted, session = send(told, tree, 0.1)
    for name in wanted & objects.keys():
        push_object(session, name, objects[name])


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        rows: a class each: replies, refused, absent, taken.
        lost: honest replies that are not in the sum.
        wrong: largest difference of the model from the one of the users in the sum, in units of what one
            user may change.
        ended: what the link says of the run if it did not complete.
        seconds: that the run took.
    """

    rows: list[dict[str, Any]]
    lost: int
    wrong: float
    ended: str
    seconds: float

    @property
    def bad(self) -> bool:
        """Whether anything was taken or lost."""
        taken = sum(row["taken"] for row in self.rows)
        return bool(taken or self.lost or self.ended or self.wrong > 0.01)


@contextlib.contextmanager
def _nodes(
    link: SuperLink, classes: Sequence[str], honest: int, seed: int, answered: Path
) -> Iterator[list[HostileNode]]:
    ids: dict[int, int] = {}
    nodes = [
        HostileNode(link.address, honest + i, name, ids, seed, answered, honest)
        for i, name in enumerate(classes)
    ]
    for node in nodes:
        node.start()
    try:
        yield nodes
    finally:
        for node in nodes:
            node.stopped.set()
        for node in nodes:
            node.join(timeout=20.0)


def attack(classes: Sequence[str], rounds: int, honest: int, seed: int, grace: float = 20.0) -> Outcome:
    """One run with a hostile node for each class.

    Args:
        classes: of replies.
        rounds: of training.
        honest: how many real SuperNodes are honest.
        seed: of what hostile nodes draw.
        grace: seconds for those who never answer, after all others did.
    """
    unsure = sum(name in UNSURE for name in classes)
    with tempfile.TemporaryDirectory() as folder:
        place, users = Path(folder), honest + len(classes)
        app = shutil.copytree(
            HERE / "hostile_app", place / "app", ignore=shutil.ignore_patterns("__pycache__")
        )
        config = {
            "users": users, "num-server-rounds": rounds, "run-dir": str(place / "run"), "grace": grace,
            "min-replies": users - unsure,
        }  # fmt: skip
        env = flower_environment(place)
        with (
            superlink(env, place / "net") as link,
            supernodes(env, link, honest),
            _nodes(link, classes, honest, seed, place / "answered") as nodes,
        ):
            done = flwr_run(app, env, link.name, config, timeout=3000)
        if not done.ok:
            return Outcome([], 0, 0.0, done.status + done.details + done.output[-3000:], done.seconds)
        rows, lost, wrong = _judge(place / "run", classes, rounds, honest)
        for row, node in zip(rows, nodes, strict=True):
            row["link"] = node.link_said[0] if node.link_said else ""
        return Outcome(rows, lost, wrong, "", done.seconds)


def _judge(
    run: Path, classes: Sequence[str], rounds: int, honest: int
) -> tuple[list[dict[str, Any]], int, float]:
    users = honest + len(classes)
    with opened_evidence(run) as evidence:
        _, ledger, _ = evidence.records
        present = [{int(user) for user in ledger.participants(t)} for t in range(rounds)]
    failed: list[dict[int, str]] = [{} for _ in range(rounds)]
    for line in (run / FAILURES).read_text().splitlines():
        row = json.loads(line)
        failed[row["round"] - 1][int(row["user"])] = row["reason"]
    counts: Counter[tuple[int, str]] = Counter()
    expected = np.zeros(update_of(0).size)
    for t in range(rounds):
        for user in range(users):
            used = user in present[t] and user not in failed[t]
            update = update_of(user).astype(np.float64)
            expected += used * update * min(1.0, CLIP / float(np.linalg.norm(update))) / users
            counts[user, "refused"] += user in failed[t]
            counts[user, "absent"] += user not in present[t]
            counts[user, "used"] += used
    rows = [
        {
            "class": name,
            "replies": rounds,
            "refused": counts[honest + i, "refused"],
            "absent": counts[honest + i, "absent"],
            "taken": 0 if name in HARMLESS else counts[honest + i, "used"],
            "reason": next((f[honest + i] for f in failed if honest + i in f), "")[:60],
        }
        for i, name in enumerate(classes)
    ]
    model = np.concatenate([tensor.numpy().reshape(-1) for tensor in load_model(run).values()])
    lost = sum(rounds - counts[user, "used"] for user in range(honest))
    wrong = float(np.linalg.norm(model - expected)) * users / CLIP
    return rows, lost, wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=CLASSES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--honest", type=int, default=2, help="real SuperNodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcome = attack(given.classes, given.rounds, given.honest, given.seed)
    if given.json:
        print(json.dumps(outcome.rows))
    else:
        table = Table("class", "replies", "refused", "absent", "taken", "reason", "the link said")
        for row in outcome.rows:
            table.add_row(*map(str, row.values()))
        Console(width=150).print(table)
        taken = sum(row["taken"] for row in outcome.rows)
        Console(width=150).print(
            f"{taken} taken, {outcome.lost} honest lost, model off by {outcome.wrong:.1e} of one user, "
            f"{outcome.ended or 'run completed'}, {outcome.seconds:.0f} s"
        )
    return int(outcome.bad)


if __name__ == "__main__":
    raise SystemExit(main())
