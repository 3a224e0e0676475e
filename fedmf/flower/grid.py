"""The in-process grid: Flower's message interface without a network."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedmf.errors import UnsoundSumError
from fedmf.flower.compat import (
    NodeInfo,
    UserConfigValue,
    claim_task_identity,
    client_error,
    empty_run,
    set_message_id,
)

_log = logging.getLogger("fedmf")

#: Flower draws node ids from all of 64 bits; ids that are no int64 here keep everybody prepared for
#: them.
_FIRST_NODE = 2**63 + 1000

#: What answers a message: a client app, or what stands for one. It may write into what it is given.
Client = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """A Flower grid that runs a client app for each message in this process.

    A server strategy written for Flower runs on it unchanged. Replies are computed as they are
    pulled, one by one, so that only one is in memory at a time. A client that raises gives an error
    reply, as in Flower, and its changes to the context are lost.

    Args:
        client: the app to run.
        nodes: number of virtual nodes; node i gets the node config that Flower's simulation gives,
            ``partition-id`` = i and ``num-partitions`` = nodes.
        run_config: the run config that the client app sees.
        node_configs: more of the node configs, by node, as ``flower-supernode --node-config`` gives
            them.

    Guarantees:
        Each client gets its own records, so that changes to them affect neither the server nor
        another client. A node's messages are answered in the order in which they were pushed.
    """

    def __init__(
        self,
        client: Client,
        nodes: int = 1,
        run_config: Mapping[str, UserConfigValue] | None = None,
        node_configs: Sequence[Mapping[str, UserConfigValue]] = (),
    ) -> None:
        claim_task_identity()
        self._run = empty_run()
        self._client = client
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=self._run.run_id,
                node_id=_FIRST_NODE + i,
                node_config={"partition-id": i, "num-partitions": nodes, **given},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i, given in enumerate(node_configs or [{}] * nodes)
        }
        self._registered = datetime.now(UTC)
        self._posted = {node: dict[str, Message]() for node in self._contexts}
        self._answered = dict[str, Message]()
        self._node_of = dict[str, int]()
        self._failures: set[str] = set()
        self._ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """See Grid.set_run."""
        self._run = run

    @property
    def run(self) -> Run:
        """See Grid.run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See Grid.create_message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """See Grid.get_node_ids."""
        return list(self._contexts)

    def get_nodes(self) -> list[NodeInfo]:
        """See Grid.get_nodes; nodes are registered in the order of their partitions."""
        moments = (self._registered + timedelta(microseconds=i) for i in itertools.count())
        return [
            NodeInfo(
                node_id=node,
                status="online",
                registered_at=moment.isoformat(timespec="microseconds"),
            )
            for node, moment in zip(self._contexts, moments, strict=False)
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See Grid.push_messages."""
        pushed = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                raise ValueError(f"node id must be one of this grid's; got {node}.")
            set_message_id(message, f"message-{next(self._ids)}")
            name = message.metadata.message_id
            self._posted[node][name] = copy.deepcopy(message)
            self._node_of[name] = node
            pushed.append(name)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """See Grid.pull_messages; replies come one by one, and the iterator waits for them."""
        for name in message_ids:
            posted = self._posted.get(self._node_of.pop(name, 0), {})
            while name in posted:  # all that its node had before are answered before it
                first = next(iter(posted))
                self._answered[first] = self._answer(posted.pop(first))
            if name in self._answered:
                yield self._answered.pop(name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """See Grid.send_and_receive; ``timeout`` does not apply to calls on this machine."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, request: Message) -> Message:
        node = request.metadata.dst_node_id
        request_id = request.metadata.message_id
        envelope = Message(RecordDict(), metadata=copy.copy(request.metadata))  # type: ignore[call-overload]
        try:
            context = copy.deepcopy(self._contexts[node])
            reply = self._client(request, context)
            _check_reply(reply, request_id)
            if context.run_config != self._contexts[node].run_config:
                raise ValueError("the run config of a context must not be changed; the client did.")
            reply = copy.deepcopy(reply)
            self._contexts[node] = context
        except (
            KeyboardInterrupt,
            UnsoundSumError,
        ):  # the latter is a bug of fedmf: nothing may be released
            raise
        except BaseException as error:  # a client's failure must never stop the server
            line = f"{type(error).__name__}: {error}"  # with its traceback the first time
            _log.error(
                "client app failed: %s", line, exc_info=None if line in self._failures else error
            )
            self._failures.add(line)
            reply = client_error(error, envelope)
        set_message_id(reply, f"reply-{next(self._ids)}")
        return reply


def _check_reply(reply: object, request_id: str) -> None:
    if not isinstance(reply, Message):
        raise TypeError(f"a client app must return a Message; got {type(reply).__name__}.")
    if reply.metadata.reply_to_message_id != request_id:
        raise ValueError(
            "a client app must return Message(..., reply_to=message); got a reply to another."
        )
