"""The in-process grid: Flower's message interface without a network.

Server strategies and fedmf's own sessions run on it as on Flower's grids; tests, `run_app` and
simulations of wrapped apps use it.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    node_gone,
    set_message_id,
)

#: Flower draws node ids from all 64 bits; ids beyond int64 here show code that is not prepared.
_FIRST_NODE = 2**63 + 1000

#: A client app, or any function that answers a message. It may write into its arguments.
Client = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """A Flower grid that runs a client app for each message in this process.

    A server strategy written for Flower runs on it unchanged. Replies are computed as they are
    pulled, one by one, so that only one is in memory at a time. A client that raises gives an error
    reply, as in Flower, and its changes to the context are lost. Nothing of its error, and no
    warning of its code, is shown or logged: a private run writes it to ``failures.jsonl``.

    To simulate nodes that come and go, override `get_node_ids`: a node that it does not return is
    not connected, and if that happens after it was asked, Flower's error reply is given for it.

    Args:
        client: the app to run.
        nodes: number of virtual nodes; node i gets the node config that Flower's simulation gives,
            ``partition-id`` = i and ``num-partitions`` = nodes.
        run_config: the run config that the client app sees.
        node_configs: for each node further entries of its node config, as given by
            ``flower-supernode --node-config``.

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
        self._contexts = dict[int, Context]()
        self._posted = dict[int, dict[str, Message]]()
        for i, node_config in enumerate(node_configs or [{}] * nodes):
            node = _FIRST_NODE + i
            self._contexts[node] = Context(
                run_id=self._run.run_id,
                node_id=node,
                node_config={"partition-id": i, "num-partitions": nodes, **node_config},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            self._posted[node] = {}
        self._registered = datetime.now(UTC)
        self._answered = dict[str, Message]()
        self._node_of = dict[str, int]()
        self._ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes, which are registered in the order of their partitions."""
        nodes = []
        for i, node in enumerate(self._contexts):
            registered = self._registered + timedelta(microseconds=i)
            nodes.append(
                NodeInfo(
                    node_id=node,
                    status="online",
                    registered_at=registered.isoformat(timespec="microseconds"),
                )
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        message_ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                raise ValueError(f"node id must be one of this grid's; got {node}.")
            set_message_id(message, f"message-{next(self._ids)}")
            message_id = message.metadata.message_id
            self._posted[node][message_id] = copy.deepcopy(message)
            self._node_of[message_id] = node
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies one by one; each is computed when the iterator reaches it."""
        connected = set(self.get_node_ids())
        for message_id in message_ids:
            posted = self._posted.get(self._node_of.pop(message_id, 0), {})
            while message_id in posted:  # a node answers earlier messages first
                first = next(iter(posted))
                request = posted.pop(first)
                if request.metadata.dst_node_id in connected:
                    reply = self._answer(request)
                else:
                    reply = node_gone(request)
                set_message_id(reply, f"reply-{next(self._ids)}")
                self._answered[first] = reply
            if message_id in self._answered:
                yield self._answered.pop(message_id)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return all replies; ``timeout`` does not apply to calls in this process."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, request: Message) -> Message:
        node = request.metadata.dst_node_id
        request_id = request.metadata.message_id
        metadata = copy.copy(request.metadata)
        envelope = Message(RecordDict(), metadata=metadata)  # type: ignore[call-overload]
        try:
            context = copy.deepcopy(self._contexts[node])
            with _unheard():
                reply = self._client(request, context)
            _check_reply(reply, request_id)
            if context.run_config != self._contexts[node].run_config:
                raise ValueError("the run config of a context must not be changed; the client did.")
            reply = copy.deepcopy(reply)
            self._contexts[node] = context
        except KeyboardInterrupt:
            raise
        except UnsoundSumError:  # a bug of fedmf, after which nothing may be released
            raise
        except BaseException as error:  # a client's failure must never stop the server
            reply = client_error(error, envelope)
        return reply


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep warnings of a client, and errors of its threads and destructors, from the screen."""
    thread_hook = threading.excepthook
    destructor_hook = sys.unraisablehook
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        threading.excepthook = thread_hook
        sys.unraisablehook = destructor_hook


def _check_reply(reply: object, request_id: str) -> None:
    if not isinstance(reply, Message):
        raise TypeError(f"a client app must return a Message; got {type(reply).__name__}.")
    if reply.metadata.reply_to_message_id != request_id:
        raise ValueError(
            "a client app must return Message(..., reply_to=message); got a reply to another."
        )
