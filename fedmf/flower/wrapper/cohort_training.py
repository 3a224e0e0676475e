"""Training of an open run on its cohorts: the inner strategy's messages out, one release a round back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedmf.flower.asking import Exchange, Persistence
from fedmf.flower.boundary import Wait
from fedmf.flower.wrapper.cohort_grid import AppClients


class CohortTraining:
    """Asks the cohort of each round and releases what it answers.

    Args:
        clients: of the app.
    """

    def __init__(self, clients: AppClients) -> None:
        self.clients, self._opened = clients, clients.opened
        self._schedule = clients.opened.cohort_schedule()
        self._round: Exchange | None = None
        self._may_wait = True

    def configure(self, number: int, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The inner strategy's messages to the nodes of round ``number``'s cohort.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        opened, layout, t = self._opened, self.clients.layout, number - 1
        planned = {opened.roster[user]: user for user in map(int, self._schedule.cohort(t))}
        cohort = {planned[user]: user for user in opened.admit(t, list(planned))}
        base = layout.flat(self.clients.model)
        self._round, self._may_wait = self.clients.asked(
            "train", number, cohort, config, grid, lambda reply: layout.read(_arrays_of(reply)) - base
        )
        return self._round.messages

    def release(self, number: int, replies: Iterable[Message]) -> ArrayRecord:
        """Clip, sum, noise, step, commit; the new model. Whose reply arrived is present, whatever it says."""
        sent, server = self._round, self._opened.server
        assert sent is not None
        total = server.new_sum()
        present, failures = sent.fold(replies, total, self.clients.quarantine)
        server.release(total, present)
        self._opened.note_parts()
        self._opened.note_failures(number - 1, failures)
        return self.clients.model

    def replies(self, number: int, config: ConfigRecord, grid: Grid, wait: Wait) -> Iterator[Message]:
        """The replies to a round, asked for again until one arrives.

        Raises:
            RuntimeError: none did, however often it was asked for.
        """
        retries, identity = self.clients.retries, self.clients.identity
        replies = Persistence(wait, retries).replies(
            f"round {number}",
            grid,
            identity,
            lambda: self.configure(number, config, grid),
            lambda: self._may_wait,
        )
        if replies is None:
            raise RuntimeError(
                f"no reply to round {number} arrived in {retries + 1} attempts; "
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
