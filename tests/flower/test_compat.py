"""The private corners of Flower that we touch behave on the admitted versions as we believe."""

import flwr
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedmf.flower.local_run.grid import InProcessGrid


def test_the_installed_version_is_one_that_was_tried() -> None:
    assert flwr.__version__.rpartition(".")[0] in ("1.41", "1.42")


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
