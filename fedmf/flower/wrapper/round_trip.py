"""One round's messages and what their replies add to the sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedmf.flower.boundary import Quarantine
from fedmf.flower.compat import arrived
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.training import FixedPointSum, UserFailure


class RoundTrip:
    """The messages of a round by user, and the model that all of them carry.

    Args:
        cohort: whom the round asks, those without a node too.
        sent: each message with its user.
        base: the trained numbers of the model sent, float64, shape (d,).
        layout: of its arrays.
        quarantine: is told which replies are refused.
    """

    def __init__(
        self,
        cohort: Sequence[str],
        sent: Sequence[tuple[Message, str]],
        base: Tensor,
        layout: ArrayLayout,
        quarantine: Quarantine,
    ) -> None:
        self.cohort, self._sent, self._base, self._layout = cohort, sent, base, layout
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
