"""Training of an open run on its cohorts: the inner strategy's messages out, one release a round back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedmf.flower.asking import Persistence
from fedmf.flower.boundary import Quarantine, Wait
from fedmf.flower.wrapper.app_run import AppRun
from fedmf.flower.wrapper.cohort_grid import CohortGrid, messages_of, reached
from fedmf.flower.wrapper.identity import UserIdentity
from fedmf.flower.wrapper.round_trip import RoundTrip


class CohortTraining:
    """Asks the cohort of each round and releases what it answers.

    Args:
        opened: the run.
        inner: makes the messages.
        identity: which node serves whom.
        quarantine: which nodes are asked no more.
        retries: how often silence of everybody is asked again.
    """

    def __init__(
        self, opened: AppRun, inner: FedAvg, identity: UserIdentity, quarantine: Quarantine, retries: int
    ) -> None:
        self._opened, self._inner, self._identity = opened, inner, identity
        self._quarantine, self._retries = quarantine, retries
        self._round: RoundTrip | None = None
        self._may_wait = True

    def configure(self, number: int, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The inner strategy's messages to the nodes of round ``number``'s cohort.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        opened, layout = self._opened, self._opened.layout
        cohort = opened.cohort(number - 1, self._identity.roster)
        nodes, complete = reached(cohort, self._identity, self._quarantine)
        sent = layout.record(opened.server.parameters)
        messages = messages_of(self._inner, "train", number, sent, config, CohortGrid(grid, sorted(nodes)))
        by_user = [(message, nodes[message.metadata.dst_node_id]) for message in messages]
        self._round = RoundTrip(cohort, by_user, layout.flat(sent), layout, self._quarantine)
        self._may_wait = bool(cohort) and complete
        return messages

    def release(self, number: int, replies: Iterable[Message]) -> ArrayRecord:
        """Clip, sum, noise, step, commit; the new model. Whose reply arrived is present, whatever it says."""
        trip, server = self._round, self._opened.server
        assert trip is not None
        total = server.new_sum()
        trip.fold(replies, total)
        server.release(total, trip.present)
        self._opened.note_clip_norm()
        self._opened.note_failures(number - 1, trip.failures)
        return self._opened.arrays

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
