"""The in-process grid: Flower's message interface without a network."""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedmf.errors import UnsoundSumError
from fedmf.flower.compat import (
    NodeInfo,
    UserConfigValue,
    claim_task_identity,
    client_error,
    empty_run,
    error_reason,
    set_message_id,
)


@dataclass(eq=False)
class _Job:
    request: Message
    number: int
    previous: _Job | None
    done: threading.Event = field(default_factory=threading.Event)


class Mailbox:
    """Messages that were posted, and their answers.

    Args:
        answer: from a message and how many messages its node had before to the reply. It must not raise
            exceptions of the client's.
        workers: W ≥ 1. With W = 1 an answer is computed when it is taken, in the taker's thread; otherwise on
            W threads, up to 2W answers before they are taken.

    Guarantees:
        A node's messages are answered in the order in which they were posted, one after another, whatever
        the order of taking and the number of workers; messages of different nodes may be answered at the
        same time. At most 2W answers, and those before the one that is asked for, are kept.
    """

    def __init__(self, answer: Callable[[Message, int], Message], workers: int = 1) -> None:
        self._answer, self._ahead = answer, 2 * workers
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._lock = threading.RLock()
        self._posted: dict[str, _Job] = {}
        self._last: dict[int, _Job] = {}
        self._begun: dict[str, Future[Message]] = {}

    def post(self, message: Message) -> None:
        """Keep a message, by its id, until its answer is taken."""
        with self._lock:
            node, name = message.metadata.dst_node_id, message.metadata.message_id
            before = self._last.get(node)
            job = _Job(message, before.number + 1 if before else 0, before)
            self._last[node] = self._posted[name] = job

    def take(self, message_id: str) -> Message | None:
        """The answer to a message, None if there is no such message or its answer was taken.

        Raises:
            BaseException: whatever computing the answer raised. Nothing is lost by that: the next call tries
                again in the taker's thread, and raises the same again where other threads compute.
        """
        with self._lock:
            if message_id in self._posted:
                self._begin(self._posted[message_id])
            while self._pool and self._posted and len(self._begun) <= self._ahead:
                self._begin(next(iter(self._posted.values())))
            future = self._begun.get(message_id)
        if future is None:
            return None
        reply = future.result()
        with self._lock:
            self._begun.pop(message_id, None)
        return reply

    def _begin(self, job: _Job | None) -> None:
        """Begin a job, after all that its node had before."""
        jobs = list[_Job]()
        while job is not None and job.request.metadata.message_id in self._posted:
            jobs.append(job)
            job = job.previous
        for each in reversed(jobs):
            if self._pool is None:
                future = Future[Message]()
                future.set_result(self._answer(each.request, each.number))
                each.previous = None
            else:  # the pool begins jobs in this order, so the one that each waits for is under way
                future = self._pool.submit(self._run, each)
            name = each.request.metadata.message_id
            self._begun[name] = future
            del self._posted[name]

    def _run(self, job: _Job) -> Message:
        if job.previous is not None:
            job.previous.done.wait()
            job.previous = None
        try:
            return self._answer(job.request, job.number)
        finally:
            job.done.set()

    def close(self) -> None:
        """Begin no answer any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def copied_records(records: RecordDict) -> RecordDict:
    """Records of its own, which share nothing with the given ones but what cannot be written.

    >>> sent = RecordDict({"config": ConfigRecord({"lr": 0.1, "milestones": [1, 2]})})
    >>> received = copied_records(sent)
    >>> received["config"]["milestones"].append(3)
    >>> sent["config"]
    {'lr': 0.1, 'milestones': [1, 2]}
    """
    copied = records.copy()
    for name, record in records.items():
        copied[name] = _copied_record(record)
    return copied


def copied_message(message: Message) -> Message:
    """The message with metadata and records of its own."""
    metadata = copy.copy(message.metadata)
    if message.has_error():
        return Message(message.error, metadata=metadata)  # type: ignore[call-overload]
    return Message(copied_records(message.content), metadata=metadata)  # type: ignore[call-overload]


def copied_context(context: Context) -> Context:
    """The context with state and configs of its own."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=copied_records(context.state),
        run_config=dict(context.run_config),
        series_id=context.series_id,
    )


def _copied_record(record: ArrayRecord | ConfigRecord | MetricRecord) -> Any:
    copied: Any = record.copy()
    for name, value in record.items():
        if isinstance(value, Array):
            copied[name] = copy.copy(value)  # another handle of the same bytes
        elif isinstance(value, list):
            copied[name] = list(value)
    return copied


_log = logging.getLogger("fedmf")

#: Flower draws node ids from all of 64 bits; ids that are no int64 here keep everybody prepared for them.
_FIRST_NODE = 2**63 + 1000


#: How a grid calls a client app: from a message and a context that the client may write into, and how many
#: messages the node had before, to the reply and the context after it.
Call = Callable[[Message, Context, int], tuple[Message, Context]]


class ClientFailure(Exception):
    """An exception of a client app in another process.

    Args:
        reason: what the error reply says.
        signature: type and text of the exception.
        trace: its traceback as text.
    """

    def __init__(self, reason: str, signature: str, trace: str) -> None:
        super().__init__(reason, signature, trace)  # what pickle gives back to it
        self.reason, self.signature, self.trace = reason, signature, trace


class InProcessGrid(Grid):
    """Runs a client app for each message on this machine.

    A server strategy written for Flower runs on it unchanged. Replies are computed as they are pulled, in one
    process one by one, so that only one is in memory at a time. A client that raises becomes an error reply,
    as it does in Flower, and what it wrote into its context is lost, as it is there.

    Args:
        client: the app to run, or how it is called, see `Call`.
        nodes: number of virtual nodes; node i gets the node config that Flower's simulation gives,
            ``partition-id`` = i and ``num-partitions`` = nodes.
        run_config: the run config that the client app sees.
        node_configs: more of the node configs, by node, as ``flower-supernode --node-config`` gives them.
        workers: W ≥ 1, how many calls may be under way at the same time.

    Guarantees:
        Each client gets records of its own: what it writes into them reaches neither the server nor another
        client. A node's messages are answered in the order in which they were pushed.
    """

    def __init__(
        self,
        client: ClientApp | Call,
        nodes: int = 1,
        run_config: Mapping[str, UserConfigValue] | None = None,
        node_configs: Sequence[Mapping[str, UserConfigValue]] = (),
        workers: int = 1,
    ) -> None:
        claim_task_identity()
        self._run = empty_run()
        app = client
        self._call: Call = (lambda q, c, _: (app(q, c), c)) if isinstance(app, ClientApp) else app
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
        self._mailbox = Mailbox(self._answer, workers)
        self._failures: set[str] = set()
        self._ids = itertools.count(1)

    def close(self) -> None:
        """Call no client any more."""
        self._mailbox.close()

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
            NodeInfo(node_id=node, status="online", registered_at=moment.isoformat(timespec="microseconds"))
            for node, moment in zip(self._contexts, moments, strict=False)
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See Grid.push_messages."""
        pushed = []
        for message in messages:
            if message.metadata.dst_node_id not in self._contexts:
                raise ValueError(f"node id must be one of this grid's; got {message.metadata.dst_node_id}.")
            set_message_id(message, f"message-{next(self._ids)}")
            self._mailbox.post(copied_message(message))
            pushed.append(message.metadata.message_id)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """See Grid.pull_messages; replies come one by one, and the iterator waits for them."""
        for message_id in list(message_ids):
            reply = self._mailbox.take(message_id)
            if reply is not None:
                yield reply

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """See Grid.send_and_receive; ``timeout`` does not apply to calls on this machine."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _log_failure(self, error: BaseException) -> str:
        """Tell the operator where a client failed, with its traceback the first time; what its reply says."""
        if not isinstance(error, ClientFailure):
            trace = "".join(traceback.format_exception(error))
            error = ClientFailure(error_reason(error), f"{type(error).__name__}: {error}", trace)
        known = error.signature in self._failures
        self._failures.add(error.signature)
        _log.error("client app failed: %s", error.signature if known else f"{error.signature}\n{error.trace}")
        return error.reason

    def _answer(self, request: Message, number: int) -> Message:
        node, request_id = request.metadata.dst_node_id, request.metadata.message_id
        envelope = Message(RecordDict(), metadata=copy.copy(request.metadata))  # type: ignore[call-overload]
        try:
            reply, context = self._call(request, copied_context(self._contexts[node]), number)
            _check_reply(reply, request_id)
            if context.run_config != self._contexts[node].run_config:
                raise ValueError("the run config of a context must not be changed; the client did.")
            reply, self._contexts[node] = copied_message(reply), context
        except (KeyboardInterrupt, UnsoundSumError):  # the latter is a bug of fedmf: nothing may be released
            raise
        except BaseException as error:  # a client's failure must never stop the server
            reply = client_error(self._log_failure(error), envelope)
        set_message_id(reply, f"reply-{next(self._ids)}")
        return reply


def _check_reply(reply: object, request_id: str) -> None:
    if not isinstance(reply, Message):
        raise TypeError(f"a client app must return a Message; got {type(reply).__name__}.")
    if reply.metadata.reply_to_message_id != request_id:
        raise ValueError("a client app must return Message(..., reply_to=message); got a reply to another.")
