"""What a client receives is its own; state, mods, lifespans and actions are as in Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from support.whole_apps import BOTH, Ask, asking, keep, kept, part_of, reply_with, server_of, value

from fedmf.flower import InProcessGrid, run_app
from fedmf.flower.arrays import array_record


@BOTH
def test_what_a_client_writes_reaches_nobody_else(workers: int) -> None:
    app = ClientApp()

    @app.train()
    def halve(message: Message, context: Context) -> Message:
        config = message.content["config"]
        config["lr"] = config["lr"] / 2
        config["seen"].append(1)
        arrays = message.content["arrays"]
        array = arrays["w"].numpy()
        array += 1.0
        arrays.to_torch_state_dict()["v"].mul_(0.0)
        arrays["w"] = Array(array)
        arrays["v"].dtype = "nonsense"
        del message.content["arrays"]["gone"]
        message.content["more"] = MetricRecord({"value": config["lr"]})
        reply = RecordDict({"m": MetricRecord({"value": config["lr"] + len(config["seen"])})})
        reply["arrays"] = ArrayRecord({"w": Array(array)})
        return Message(reply, reply_to=message)

    tensors = {"w": torch.zeros(3), "v": torch.ones(2), "gone": torch.ones(1)}
    sent = [ArrayRecord(dict(tensors)), array_record(tensors)]

    def main(grid: Grid, context: Context) -> None:
        for arrays in sent:
            content = RecordDict({"config": ConfigRecord({"lr": 1.0, "seen": [0]}), "arrays": arrays})
            messages = [Message(content, node, "train") for node in grid.get_node_ids()]
            replies = list(grid.send_and_receive(messages))
            assert [value(reply) for reply in replies] == [2.5] * 3
            for reply in replies:
                assert reply.content["arrays"]["w"].numpy().tolist() == [1.0] * 3
            assert content == RecordDict({"config": ConfigRecord({"lr": 1.0, "seen": [0]}), "arrays": arrays})
            assert {name: arrays[name].numpy().tolist() for name in arrays} == {
                "w": [0.0] * 3,
                "v": [1.0] * 2,
                "gone": [1.0],
            }
            assert arrays["v"].dtype == "float32"

    run_app(server_of(main), app, num_supernodes=3, workers=workers)
    assert tensors["w"].tolist() == [0.0] * 3
    assert tensors["v"].tolist() == [1.0] * 2


def test_records_of_a_reply_are_not_those_of_the_client_s_state() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if "mine" not in context.state:
            context.state["mine"] = MetricRecord({"value": 1.0})
        return Message(RecordDict({"m": context.state["mine"]}), reply_to=message)

    def body(ask: Ask, context: Context) -> None:
        (first,) = ask(0)
        first.content["m"]["value"] = 7.0
        keep(context, ask(0))

    assert kept(run_app(asking(body), app, num_supernodes=1, workers=1)) == [1.0]


def test_large_arrays_are_shared_not_copied() -> None:
    app = ClientApp()
    seen: list[int] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(id(message.content["arrays"]["w"].data))
        return Message(message.content, reply_to=message)

    grid = InProcessGrid(app, 3)
    arrays = ArrayRecord({"w": torch.zeros(1000)})
    content = RecordDict({"arrays": arrays})
    replies = grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()])
    assert {*seen, *(id(reply.content["arrays"]["w"].data) for reply in replies)} == {id(arrays["w"].data)}


@BOTH
def test_state_of_a_client_lives_on_its_node_and_a_failed_call_leaves_none(workers: int) -> None:
    app = ClientApp()

    @app.train()
    def count(message: Message, context: Context) -> Message:
        record = context.state.setdefault("count", MetricRecord({"calls": 0}))
        record["calls"] = record["calls"] + 1
        if message.content["config"].get("fail"):
            raise OSError("no disk")
        return reply_with(100 * part_of(context) + record["calls"], message)

    def body(ask: Ask, context: Context) -> None:
        keep(context, ask(0, 1, 0, 0, 2))
        assert [reply.has_error() for reply in ask(0, 1, fail=1)] == [True, True]
        keep(context, ask(2, 1, 0), "later")

    context = run_app(asking(body), app, num_supernodes=3, workers=workers)
    assert kept(context) == [1, 101, 2, 3, 201]
    assert kept(context, "later") == [202, 102, 4]


@BOTH
def test_mods_and_lifespans_and_actions_run_around_each_call(workers: int) -> None:
    events: list[str] = []

    def doubling(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        reply = call_next(message, context)
        reply.content["m"]["value"] = 2 * value(reply)
        return reply

    app = ClientApp(mods=[doubling])

    @app.lifespan()
    def lifespan(context: Context) -> Iterator[None]:
        context.state["life"] = MetricRecord({"open": 1})
        yield
        context.state["life"]["open"] = 0

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_with(10.0 + context.state["life"]["open"], message)

    @app.query("size", mods=[doubling])
    def size(message: Message, context: Context) -> Message:
        return reply_with(1.0, message)

    def body(ask: Ask, context: Context) -> None:
        events.append("main")
        keep(context, [*ask(0), *ask(1, kind="query.size")])
        (reply,) = ask(0, kind="query.unknown")
        assert "No query function registered with name 'unknown'" in reply.error.reason

    server = asking(body)

    @server.lifespan()
    def around(context: Context) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    assert kept(run_app(server, app, num_supernodes=2, workers=workers)) == [22.0, 4.0]
    assert events == ["begin", "main", "end"]
