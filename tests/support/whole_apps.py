"""Parts of small Flower apps: a server that asks nodes by partition, a linear model, federated averaging."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

NODES = 5
Ask = Callable[..., list[Message]]


def server_of(main: Callable[[Grid, Context], None]) -> ServerApp:
    app = ServerApp()
    app.main()(main)
    return app


def asking(body: Callable[[Ask, Context], None]) -> ServerApp:
    """A server app that asks nodes, by partition, and keeps what it wants in its state."""

    def main(grid: Grid, context: Context) -> None:
        nodes = list(grid.get_node_ids())

        def ask(*parts: int, kind: str = "train", **config: float) -> list[Message]:
            content = RecordDict({"config": ConfigRecord(dict(config))})  # shared, as strategies do
            messages = [Message(content, nodes[part], kind, group_id="1") for part in parts]
            return list(grid.send_and_receive(messages))

        body(ask, context)

    return server_of(main)


def value(message: Message) -> float:
    return float(message.content["m"]["value"])


def keep(context: Context, replies: list[Message], name: str = "values") -> None:
    context.state[name] = MetricRecord({"all": [value(reply) for reply in replies]})


def kept(context: Context, name: str = "values") -> list[float]:
    return context.state[name]["all"]


def reply_with(number: float, message: Message) -> Message:
    return Message(RecordDict({"m": MetricRecord({"value": number})}), reply_to=message)


def part_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def examples(part: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(part)
    x = torch.randn(4 + part, 3, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * part


def trained(state: dict[str, Tensor], part: int, rate: float) -> tuple[dict[str, Tensor], float]:
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(state)
    x, y = examples(part)
    loss = torch.nn.functional.mse_loss(model(x).flatten(), y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= rate * parameter.grad
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, loss.item()


linear = ClientApp()


@linear.train()
def _train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    state, loss = trained(
        message.content["arrays"].to_torch_state_dict(),
        part_of(context),
        float(config["lr"]),
    )
    metrics = MetricRecord({"loss": loss, "num-examples": 4 + part_of(context)})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


@linear.evaluate()
def _evaluate(message: Message, context: Context) -> Message:
    return Message(
        RecordDict({"metrics": MetricRecord({"accuracy": 1.0, "num-examples": 1})}), reply_to=message
    )
