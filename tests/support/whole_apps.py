"""Parts of small Flower apps: a server that asks nodes by partition."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

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
