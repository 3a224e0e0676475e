"""Answers that cannot be computed at once are not lost, whoever computes them."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict

from fedmf.flower.compat import set_message_id
from fedmf.flower.local_run.grid import Mailbox


def message(name: str, node: int = 1) -> Message:
    made = Message(RecordDict(), node, "train")
    set_message_id(made, name)
    return made


def test_an_answer_that_raised_is_computed_again_and_in_order() -> None:
    asked: list[tuple[str, int]] = []

    def answer(request: Message, number: int) -> Message:
        asked.append((request.metadata.message_id, number))
        if len(asked) == 2:
            raise MemoryError
        return request

    mailbox = Mailbox(answer)
    for name in "abc":
        mailbox.post(message(name))
    with pytest.raises(MemoryError):
        mailbox.take("b")
    taken = [mailbox.take(name) for name in "cab"]
    assert [reply.metadata.message_id for reply in taken if reply] == ["c", "a", "b"]
    assert asked == [("a", 0), ("b", 1), ("b", 1), ("c", 2)]
    assert mailbox.take("b") is None


def test_an_answer_that_raised_on_another_thread_raises_whenever_it_is_asked_for() -> None:
    def answer(request: Message, number: int) -> Message:
        if request.metadata.message_id == "b":
            raise MemoryError
        return request

    mailbox = Mailbox(answer, workers=2)
    for node, name in enumerate("abcdefgh"):
        mailbox.post(message(name, node))
    for _ in range(3):
        with pytest.raises(MemoryError):
            mailbox.take("b")
    assert all(mailbox.take(name) is not None for name in "acdefgh")
    mailbox.close()
