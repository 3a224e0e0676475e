"""The client app, which contains no code for privacy."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_data, test, train

app = ClientApp()


@app.train()
def train_here(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition = context.node_config["partition-id"]
    partitions = context.node_config["num-partitions"]
    x, y, _, _ = load_data(int(partition), int(partitions))
    epochs = int(context.run_config["local-epochs"])
    loss = train(model, x, y, epochs, float(msg.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg
    )


@app.evaluate()
def evaluate_here(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition = context.node_config["partition-id"]
    partitions = context.node_config["num-partitions"]
    x, y, _, _ = load_data(int(partition), int(partitions))
    loss, accuracy = test(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
