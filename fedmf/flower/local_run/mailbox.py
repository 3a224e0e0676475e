"""Which message is answered when: lazily one by one, or some ahead on several workers."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from flwr.app import Message


@dataclass(frozen=True, eq=False)
class _Job:
    request: Message
    number: int
    previous: threading.Event | None
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
        self._answer = answer
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._ahead = 2 * workers if workers > 1 else 0
        self._lock = threading.RLock()
        self._pending: OrderedDict[str, _Job] = OrderedDict()
        self._of_node: defaultdict[int, deque[str]] = defaultdict(deque)
        self._last: dict[int, _Job] = {}
        self._started: dict[str, Future[Message]] = {}
        self._answers: dict[str, Message] = {}

    def post(self, message: Message) -> None:
        """Keep a message, by its id, until its answer is taken."""
        with self._lock:
            node, name = message.metadata.dst_node_id, message.metadata.message_id
            before = self._last.get(node)
            job = _Job(message, before.number + 1, before.done) if before else _Job(message, 0, None)
            self._last[node] = self._pending[name] = job
            self._of_node[node].append(name)

    def take(self, message_id: str) -> Message | None:
        """The answer to a message, None if there is no such message or its answer was taken.

        Raises:
            BaseException: whatever computing the answer raised. Nothing is lost by that: the next call tries
                again in the taker's thread, and raises the same again where other threads compute.
        """
        if self._pool is None:
            with self._lock:
                return self._computed(message_id)
        with self._lock:
            job = self._pending.get(message_id)
            if job is not None:
                queue = self._of_node[job.request.metadata.dst_node_id]
                while message_id in self._pending:
                    self._start(self._pool, queue[0])
            future = self._started.get(message_id)
            while self._pending and len(self._started) - (future is not None) < self._ahead:
                self._start(self._pool, next(iter(self._pending)))
        if future is None:
            return None
        reply = future.result()
        with self._lock:
            self._started.pop(message_id, None)
        return reply

    def _computed(self, message_id: str) -> Message | None:
        job = self._pending.get(message_id)
        if job is not None:
            queue = self._of_node[job.request.metadata.dst_node_id]
            while message_id in self._pending:
                first = self._pending[queue[0]]
                self._answers[queue[0]] = self._answer(first.request, first.number)
                del self._pending[queue.popleft()]
        return self._answers.pop(message_id, None)

    def close(self) -> None:
        """Begin no answer any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor, name: str) -> None:
        """Begin the first message of a node that was not begun."""
        # The pool begins jobs in this order, so the job that this one waits for is under way.
        self._started[name] = pool.submit(self._run, self._pending[name])
        self._of_node[self._pending.pop(name).request.metadata.dst_node_id].popleft()

    def _run(self, job: _Job) -> Message:
        if job.previous is not None:
            job.previous.wait()
        try:
            return self._answer(job.request, job.number)
        finally:
            job.done.set()
