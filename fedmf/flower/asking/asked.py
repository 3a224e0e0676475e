"""Messages to clients, and what the replies to them add to a sum."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message, MessageType
from torch import Tensor

from fedmf.flower.compat import arrived
from fedmf.flower.messages import read_failures, read_rows_reply, read_slice_reply, request_content
from fedmf.rounds import Answer, Exchange, MessageForm, Part, Request
from fedmf.training import FixedPointSum, UserFailure


class MessageExchange(Exchange):
    """Messages of one attempt over a grid, which gives each its id.

    Args:
        messages: to be sent.
        parts: whom each asks.
    """

    def __init__(self, messages: list[Message], parts: Sequence[Part]) -> None:
        super().__init__(messages)
        self._parts = parts
        self._open: dict[str, Part] | None = None

    @property
    def unanswered(self) -> dict[str, Part]:
        """Parts by the id of their message, once messages were sent."""
        if self._open is None:
            ids = (message.metadata.message_id for message in self.messages)
            self._open = dict(zip(ids, self._parts, strict=True))
        return self._open

    def part_of(self, reply: Message) -> Part | None:
        """See `Exchange.part_of`."""
        return self.unanswered.pop(reply.metadata.reply_to_message_id, None)

    def sender(self, reply: Message) -> int:
        """See `Exchange.sender`."""
        return reply.metadata.src_node_id

    def arrived(self, reply: Message) -> bool:
        """See `Exchange.arrived`."""
        return arrived(reply)


class Asked(MessageExchange):
    """The messages to fedmf's own client app: rows, or exact sums over users.

    Args:
        form: of the messages.
        parts: whom each asks.
        parameters: of the model, shape (d,).
        t: 0-based round.
        clip_norm: ζ_t; None for that of the run.
    """

    def __init__(
        self,
        form: MessageForm,
        parts: Sequence[Part],
        parameters: Tensor,
        t: int,
        clip_norm: float | None = None,
    ) -> None:
        self._form, self._t, self._dimension = form, t, parameters.numel()
        messages = [
            Message(
                request_content(Request(parameters, t, users, form.is_slice, clip_norm)),
                node,
                MessageType.TRAIN,
                group_id=str(t + 1),
            )
            for node, users in parts
        ]
        super().__init__(messages, parts)

    def bytes_of(self, message_id: str) -> int:
        """See `Exchange.bytes_of`: twice what they take; slices hold up to four int64 a parameter."""
        _, users = self.unanswered.get(message_id, (0, ()))
        return 64 * self._dimension if self._form.is_slice else 8 * self._dimension * len(users)

    def add(self, reply: Message, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """See `Exchange.add`; every row is clipped again.

        A row that is not finite is one user's; whatever else is wrong with a reply is everybody's in it.
        """
        lengths = total.lengths
        try:
            if self._form.is_slice:
                parts = read_slice_reply(reply, t=self._t, asked=users, lengths=lengths)
                return Answer(parts, ()).add_to(total, users)
            rows = read_rows_reply(reply, t=self._t, asked=users, dimension=lengths["sum"])
            return Answer(rows, ()).add_to(total, users)
        except Exception as reason:  # whatever a stranger's bytes may cause
            total.add_nothing(len(users))
            return dict.fromkeys(users, str(reason))

    def told(self, reply: Message, users: tuple[str, ...]) -> list[UserFailure]:
        """See `Exchange.told`."""
        return read_failures(reply, users)
