"""Training of an open run on its cohorts: the inner strategy's messages out, one release a round back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedmf.flower.asking import Exchange, Persistence
from fedmf.flower.boundary import Quarantine, Wait
from fedmf.flower.wrapper.cohort_grid import CohortGrid, UserMessages, messages_of, reached
from fedmf.flower.wrapper.identity import UserIdentity
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import Session


class CohortTraining:
    """Asks the cohort of each round and releases what it answers.

    Args:
        opened: the run.
        layout: of its model.
        inner: makes the messages.
        identity: which node serves whom.
        quarantine: which nodes are asked no more.
        retries: how often silence of everybody is asked again.
    """

    def __init__(
        self,
        opened: Session,
        layout: ArrayLayout,
        inner: FedAvg,
        identity: UserIdentity,
        quarantine: Quarantine,
        retries: int,
    ) -> None:
        self._opened, self.layout, self._inner, self._identity = opened, layout, inner, identity
        self._schedule = opened.cohort_schedule()
        self._quarantine, self._retries = quarantine, retries
        self._round: Exchange | None = None
        self._may_wait = True

    @property
    def arrays(self) -> ArrayRecord:
        """The released model."""
        return self.layout.record(self._opened.server.parameters)

    def configure(self, number: int, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The inner strategy's messages to the nodes of round ``number``'s cohort.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        opened, layout, t = self._opened, self.layout, number - 1
        planned = {opened.roster[user]: user for user in map(int, self._schedule.cohort(t))}
        cohort = {planned[user]: user for user in opened.admit(t, list(planned))}
        nodes, complete = reached(cohort, self._identity, self._quarantine)
        sent = self.arrays
        messages = messages_of(self._inner, "train", number, sent, config, CohortGrid(grid, sorted(nodes)))
        base = layout.flat(sent)
        self._round = UserMessages(messages, nodes, lambda reply: layout.read(_arrays_of(reply)) - base)
        self._may_wait = bool(cohort) and complete
        return messages

    def release(self, number: int, replies: Iterable[Message]) -> ArrayRecord:
        """Clip, sum, noise, step, commit; the new model. Whose reply arrived is present, whatever it says."""
        sent, server = self._round, self._opened.server
        assert sent is not None
        total = server.new_sum()
        present, failures = sent.fold(replies, total, self._quarantine)
        server.release(total, present)
        self._opened.note_parts()
        self._opened.note_failures(number - 1, failures)
        return self.arrays

    def replies(self, number: int, config: ConfigRecord, grid: Grid, wait: Wait) -> Iterator[Message]:
        """The replies to a round, asked for again until one arrives.

        Raises:
            RuntimeError: none did, however often it was asked for.
        """
        replies = Persistence(wait, self._retries).replies(
            f"round {number}",
            grid,
            self._identity,
            lambda: self.configure(number, config, grid),
            # A user who is asked no more would have ended the wait by another useless reply.
            lambda: self._may_wait,
        )
        if replies is None:
            raise RuntimeError(
                f"no reply to round {number} arrived in {self._retries + 1} attempts; "
                "stopped. Nothing of it was released: start again when nodes answer."
            )
        return replies


def _arrays_of(reply: Message) -> ArrayRecord:
    if reply.has_error():
        raise ValueError(f"client error {reply.error.code}")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"reply must hold one array record; got {len(records)}")
    return records[0]
