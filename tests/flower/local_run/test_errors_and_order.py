"""Errors of clients and servers, and the order in which replies may be pulled."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from support.whole_apps import BOTH, Ask, asking, keep, kept, part_of, reply_with, server_of, value

from fedmf.errors import ConfigError
from fedmf.flower import run_app


@BOTH
def test_nothing_that_a_client_raises_ends_the_run(workers: int) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise GeneratorExit("mine") if part_of(context) else asyncio.CancelledError("mine")

    reasons: list[str] = []

    def body(ask: Ask, context: Context) -> None:
        reasons.extend(reply.error.reason for reply in ask(0, 1))

    run_app(asking(body), app, num_supernodes=2, workers=workers)
    assert reasons == [
        "<class 'asyncio.exceptions.CancelledError'>:<'mine'>",
        "<class 'GeneratorExit'>:<'mine'>",
    ]


@BOTH
def test_an_error_of_a_client_is_an_error_reply(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        match part_of(context):
            case 1:
                raise ValueError("bad row 7")
            case 2:
                sys.exit(3)
            case 3:
                return None
            case 4:
                return Message(RecordDict(), 1, "train")
            case 5:
                context.run_config["a"] = 2
        return reply_with(1.0, message)

    reasons: list[str] = []

    def body(ask: Ask, context: Context) -> None:
        replies = ask(*range(6), 0)
        assert [reply.metadata.src_node_id for reply in replies[:2]] == [2**63 + 1000, 2**63 + 1001]
        reasons.extend(reply.error.reason if reply.has_error() else "" for reply in replies)

    with caplog.at_level(logging.ERROR, "fedmf"):
        run_app(asking(body), app, num_supernodes=6, run_config={"a": 1}, workers=workers)
    assert reasons == [
        "",
        "<class 'ValueError'>:<'bad row 7'>",
        "<class 'SystemExit'>:<'3'>",
        "<class 'TypeError'>:<'a client app must return a Message; got NoneType.'>",
        "<class 'ValueError'>:<'a client app must return Message(..., reply_to=message); got a reply to "
        "another.'>",
        "<class 'ValueError'>:<'the run config of a context must not be changed; the client did.'>",
        "",
    ]
    assert "in train\n" in caplog.text
    assert caplog.text.count("bad row 7") >= 1


def test_a_process_that_dies_costs_one_message() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if message.content["config"].get("die"):
            os._exit(9)
        return reply_with(1.0, message)

    reasons: list[str] = []

    def body(ask: Ask, context: Context) -> None:
        reasons.extend(reply.error.reason for reply in ask(0, 1, 2, die=1))
        keep(context, ask(*range(4), *range(4)))

    assert kept(run_app(asking(body), app, num_supernodes=4, workers=2)) == [1.0] * 8
    assert reasons == ["the client's process ended (exit code 9)"] * 3


@BOTH
def test_an_error_of_the_server_arrives_as_it_is_and_no_process_stays(workers: int) -> None:
    processes: list[int] = []

    def body(ask: Ask, context: Context) -> None:
        processes.extend(int(value(reply)) for reply in ask(0, 1, 2, 3))
        raise KeyError("mine")

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_with(os.getpid(), message)

    with pytest.raises(KeyError, match="mine"):
        run_app(asking(body), app, num_supernodes=4, workers=workers)
    assert (workers == 1) == (set(processes) == {os.getpid()})
    for process in set(processes) - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_supernodes": 0}, r"N \(num_supernodes\) must be an integer of at least 1; got 0\."),
        ({"workers": 0}, r"W \(workers\) must be an integer of at least 1; got 0\."),
        ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
        ({"run_config": {"a": object()}}, "run_config: The value for key a needs to be of type"),
        ({"client_app": None}, "client_app must be a ClientApp; got NoneType"),
        ({"server_app": "nowhere"}, "client_app must be left out with the folder"),
        ({"server_app": "nowhere", "client_app": None}, "cannot read .*nowhere/pyproject.toml: No such file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changes: dict, error: str) -> None:
    arguments = {"server_app": ServerApp(), "client_app": ClientApp(), "num_supernodes": 2, **changes}
    with pytest.raises(ConfigError, match=error) as caught:
        run_app(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_replies_may_be_pulled_in_any_order_and_once(workers: int) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        record = context.state.setdefault("count", MetricRecord({"calls": 0}))
        record["calls"] = record["calls"] + 1
        return reply_with(100 * part_of(context) + record["calls"], message)

    def main(grid: Grid, context: Context) -> None:
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()] * 1
        messages += [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        names = list(grid.push_messages(messages))
        replies = [reply for name in reversed(names) for reply in grid.pull_messages([name])]
        assert [reply.metadata.reply_to_message_id for reply in replies] == names[::-1]
        keep(context, replies)
        assert list(grid.pull_messages(names)) == []
        registered = [node.registered_at for node in grid.get_nodes()]
        assert registered == sorted(set(registered))
        assert [node.node_id for node in grid.get_nodes()] == list(grid.get_node_ids())

    context = run_app(server_of(main), app, num_supernodes=12, workers=workers)
    assert kept(context) == [100 * part + call for call in (2, 1) for part in reversed(range(12))]
