"""The private corners of Flower that we touch behave on the admitted versions as we believe."""

import flwr
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.version import check_version


def test_the_installed_version_is_one_that_was_tried() -> None:
    assert check_version(flwr.__version__) is None


def test_an_older_version_is_refused_by_name_and_a_newer_one_is_told() -> None:
    with pytest.raises(ImportError, match=r"flwr 1\.38 or newer; flwr 1\.37\.0 is installed: pip install"):
        check_version("1.37.0")
    with pytest.raises(ImportError, match="which is not installed: pip install"):
        check_version(None)
    assert [check_version(f"1.{minor}.0") for minor in range(38, 43)] == [None] * 5
    assert check_version("1.43.0.dev20261122") == (
        "flwr 1.43.0.dev20261122 is newer than those that fedmf was tried with, 1.38 to 1.42; it may work"
    )
    assert "newer than those" in str(check_version("2.0.0"))


def test_messages_carry_ids_and_errors_like_flowers() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            raise ValueError("client says no")
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, nodes=2)
    nodes = grid.get_node_ids()
    assert [info.node_id for info in grid.get_nodes()] == nodes
    ids = grid.push_messages([Message(RecordDict(), node, MessageType.QUERY) for node in nodes])
    good, bad = grid.pull_messages(ids)
    assert [good.metadata.reply_to_message_id, bad.metadata.reply_to_message_id] == ids
    assert good.metadata.src_node_id == nodes[0]
    assert bad.error.code == 2
    assert bad.error.reason == "<class 'ValueError'>:<'client says no'>"
    assert list(grid.pull_messages(ids)) == []
    message = grid.create_message(RecordDict(), MessageType.TRAIN, nodes[0], group_id="1")
    (unregistered,) = grid.send_and_receive([message])
    assert unregistered.has_error()
    assert grid.run.run_id == good.metadata.run_id
