"""What the operator sees of client apps that fail in this process."""

import logging
import re

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedmf.flower.local_run.grid import InProcessGrid


class OwnError(Exception):
    """An error of the user's code."""


def load_examples(part: int) -> None:
    raise OwnError(f"no file for part {part}")


@pytest.fixture
def grid() -> InProcessGrid:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        if part > 0:
            load_examples(part)
        return Message(RecordDict(), reply_to=message)

    return InProcessGrid(app, nodes=3)


def ask(grid: InProcessGrid, nodes: list[int]) -> list[Message]:
    return grid.send_and_receive([Message(RecordDict(), node, MessageType.TRAIN) for node in nodes])


def test_a_failure_is_logged_once_with_its_own_error_and_traceback(
    grid: InProcessGrid, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad, other = grid.get_node_ids()
    with caplog.at_level(logging.INFO, "fedmf"):
        replies = [reply for _ in range(3) for reply in ask(grid, [good, bad])]
    assert [reply.has_error() for reply in replies] == [False, True] * 3
    assert caplog.messages == ["client app failed: OwnError: no file for part 1"] * 3
    first, *again = caplog.records
    assert first.levelno == logging.ERROR
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], OwnError)
    assert not any(record.exc_info for record in again)
    assert re.search(
        r"Traceback.*in train\n.*in load_examples\n.*OwnError: no file for part 1", caplog.text, re.DOTALL
    )
    assert caplog.text.count("Traceback") == 1
    # Another error is another story.
    caplog.clear()
    with caplog.at_level(logging.INFO, "fedmf"):
        ask(grid, [other])
    assert caplog.text.count("Traceback") == 1
    assert "OwnError: no file for part 2" in caplog.text


def test_nobody_fails_and_nothing_is_logged(grid: InProcessGrid, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedmf"):
        (reply,) = ask(grid, grid.get_node_ids()[:1])
    assert not reply.has_error()
    assert caplog.messages == []
