"""The in-process grid: Flower's message interface without processes or serialisation queues."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedmf.flower.compat import claim_task_identity, client_error, empty_run, set_message_id

__all__ = ["InProcessGrid"]

_log = logging.getLogger("fedmf")

#: Flower draws node ids from all of 64 bits; ids that are no int64 here keep everybody prepared for them.
_FIRST_NODE = 2**63 + 1000


class InProcessGrid(Grid):
    """Runs a client app for each message in this process, one after another.

    A server strategy written for Flower runs on it unchanged. A reply is computed when it is pulled,
    so that only one is in memory at a time; a client that raises becomes an error reply, as it does
    in Flower.

    Args:
        client_app: the app to run.
        nodes: number of virtual nodes; node i gets the node config that Flower's simulation gives,
            ``partition-id`` = i and ``num-partitions`` = nodes.
        run_config: the run config that the client app sees.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int = 1,
        run_config: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        claim_task_identity()
        self._run = empty_run()
        self._client_app = client_app
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=self._run.run_id,
                node_id=_FIRST_NODE + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i in range(nodes)
        }
        self._pending: dict[str, Message] = {}
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

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See Grid.push_messages."""
        pushed = []
        for message in messages:
            if message.metadata.dst_node_id not in self._contexts:
                raise ValueError(f"node id must be one of this grid's; got {message.metadata.dst_node_id}.")
            set_message_id(message, f"message-{next(self._ids)}")
            self._pending[message.metadata.message_id] = message
            pushed.append(message.metadata.message_id)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """See Grid.pull_messages; replies are computed one by one as the iterator advances."""
        for message_id in list(message_ids):
            request = self._pending.pop(message_id, None)
            if request is not None:
                yield self._answer(request)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """See Grid.send_and_receive; ``timeout`` does not apply to calls in this process."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _log_failure(self, error: Exception) -> None:
        """Where a client failed, for the operator: with its traceback the first time."""
        signature = f"{type(error).__name__}: {error}"
        fresh = signature not in self._failures
        self._failures.add(signature)
        _log.error("client app failed: %s", signature, exc_info=error if fresh else None)

    def _answer(self, request: Message) -> Message:
        try:
            reply = self._client_app(request, self._contexts[request.metadata.dst_node_id])
        except Exception as error:  # a client's failure must never stop the server
            self._log_failure(error)
            reply = client_error(error, request)
        set_message_id(reply, f"reply-{next(self._ids)}")
        return reply
