"""The client app: nothing in it but one mod knows of privacy. It notes that it has an answer."""

from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmf.flower import user_id_mod
from hostile_app.task import trained

app = ClientApp(mods=[user_id_mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add what this node's user adds."""
    received = message.content.array_records["arrays"]
    arrays = trained(int(context.node_config["partition-id"]), received)
    noted = Path(str(context.run_config["run-dir"])).with_name("answered")
    noted.mkdir(exist_ok=True)
    (noted / message.metadata.message_id).touch()
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 3})}), reply_to=message
    )
