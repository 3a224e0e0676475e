"""Training of an open run on its cohorts: the inner strategy's messages out, one release a round back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedmf.flower.asking import Persistence
from fedmf.flower.boundary import Quarantine, Wait
from fedmf.flower.compat import arrived
from fedmf.flower.wrapper.cohort_grid import CohortGrid, messages_of, reached
from fedmf.flower.wrapper.identity import UserIdentity
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import Session
from fedmf.training import FixedPointSum, UserFailure


class RoundTrip:
    """The messages of a round by user, and the model that all of them carry.

    Args:
        sent: each message with its user.
        base: the trained numbers of the model sent, float64, shape (d,).
        layout: of its arrays.
        quarantine: is told which replies are refused.
    """

    def __init__(
        self,
        sent: Sequence[tuple[Message, str]],
        base: Tensor,
        layout: ArrayLayout,
        quarantine: Quarantine,
    ) -> None:
        self._sent, self._base, self._layout = sent, base, layout
        self._quarantine = quarantine
        self.present: list[str] = []
        self.failures: list[UserFailure] = []

    def fold(self, replies: Iterable[Message], total: FixedPointSum) -> None:
        """Clip and add the updates; whose reply arrived is present, whatever it holds."""
        awaited = {m.metadata.message_id: (m.metadata.dst_node_id, user) for m, user in self._sent}
        for reply in replies:
            node, user = awaited.pop(reply.metadata.reply_to_message_id, (0, None))
            if user is None or not arrived(reply):
                continue
            self.present.append(user)
            reason = self._add(reply, total)
            if reason:
                self.failures += [UserFailure(user, "reply", reason), *self._quarantine.refused(node, [user])]
            else:
                self._quarantine.accepted(node, [user])
        self.present.sort()

    def _add(self, reply: Message, total: FixedPointSum) -> str:
        """Why a reply adds zeros; empty if it does not."""
        try:
            update = self._layout.read(_arrays_of(reply)) - self._base
            finite = bool(total.add_updates(update[None]).all())
        except Exception as error:  # whatever a stranger's bytes may cause
            total.add_nothing(1)
            return str(error) or type(error).__name__
        return "" if finite else "update holds NaN or infinity"


def _arrays_of(reply: Message) -> ArrayRecord:
    if reply.has_error():
        raise ValueError(f"client error {reply.error.code}")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"reply must hold one array record; got {len(records)}")
    return records[0]


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
        self._round: RoundTrip | None = None
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
        by_user = [(message, nodes[message.metadata.dst_node_id]) for message in messages]
        self._round = RoundTrip(by_user, layout.flat(sent), layout, self._quarantine)
        self._may_wait = bool(cohort) and complete
        return messages

    def release(self, number: int, replies: Iterable[Message]) -> ArrayRecord:
        """Clip, sum, noise, step, commit; the new model. Whose reply arrived is present, whatever it says."""
        trip, server = self._round, self._opened.server
        assert trip is not None
        total = server.new_sum()
        trip.fold(replies, total)
        server.release(total, trip.present)
        self._opened.note_parts()
        self._opened.note_failures(number - 1, trip.failures)
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
