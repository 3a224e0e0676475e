"""Whole Flower apps on this machine: nothing in them knows that it is not Flower's engine that runs
them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from support.small_runs import dotted
from support.whole_apps import (
    Ask,
    asking,
    keep,
    kept,
    part_of,
    reply_with,
    server_of,
    value,
)

from fedmf.errors import ConfigError
from fedmf.flower import apps, run_app


def test_what_a_client_writes_reaches_nobody_else() -> None:
    app = ClientApp()

    @app.train()
    def halve(message: Message, context: Context) -> Message:
        config = message.content["config"]
        config["lr"] = config["lr"] / 2
        config["seen"].append(1)
        arrays = message.content["arrays"]
        array = arrays["w"].numpy()
        array += 1.0
        arrays["w"] = Array(array)
        arrays["v"].dtype = "nonsense"
        del message.content["arrays"]["gone"]
        message.content["more"] = MetricRecord({"value": config["lr"]})
        content = {"m": MetricRecord({"value": config["lr"] + len(config["seen"])})}
        return Message(RecordDict(content), reply_to=message)

    arrays = ArrayRecord({name: Array(np.zeros(3, np.float32)) for name in ("w", "v", "gone")})

    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"config": ConfigRecord({"lr": 1.0, "seen": [0]}), "arrays": arrays})
        replies = list(
            grid.send_and_receive([Message(content, n, "train") for n in grid.get_node_ids()])
        )
        assert [value(reply) for reply in replies] == [2.5] * 3
        assert content == RecordDict(
            {"config": ConfigRecord({"lr": 1.0, "seen": [0]}), "arrays": arrays}
        )
        assert {name: (a.dtype, a.numpy().tolist()) for name, a in arrays.items()} == dict.fromkeys(
            ("w", "v", "gone"), ("float32", [0.0] * 3)
        )

    run_app(server_of(main), app, num_supernodes=3)


def test_state_of_a_client_lives_on_its_node_and_a_failed_call_leaves_none() -> None:
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

    context = run_app(asking(body), app, num_supernodes=3)
    assert kept(context) == [1, 101, 2, 3, 201]
    assert kept(context, "later") == [202, 102, 4]


def test_an_error_of_a_client_is_an_error_reply_and_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        match part_of(context):
            case 1:
                raise ValueError("bad row 7")
            case 2:
                sys.exit(3)
            case 3:
                return None  # type: ignore[return-value]
            case 4:
                return Message(RecordDict(), 1, "train")
            case 5:
                context.run_config["a"] = 2
            case 6:
                raise asyncio.CancelledError("mine")
        return reply_with(1.0, message)

    reasons: list[str] = []

    def body(ask: Ask, context: Context) -> None:
        replies = ask(*range(7), 0, 1)
        assert [reply.metadata.src_node_id for reply in replies[:2]] == [2**63 + 1000, 2**63 + 1001]
        reasons.extend(reply.error.reason if reply.has_error() else "" for reply in replies)

    with caplog.at_level(logging.DEBUG):
        run_app(asking(body), app, num_supernodes=7, run_config={"a": 1})
    assert reasons == [
        "",
        "<class 'ValueError'>:<'bad row 7'>",
        "<class 'SystemExit'>:<'3'>",
        "<class 'TypeError'>:<'a client app must return a Message; got NoneType.'>",
        (
            "<class 'ValueError'>:<'a client app must return Message(..., reply_to=message); got a"
            " reply to another.'>"
        ),
        "<class 'ValueError'>:<'the run config of a context must not be changed; the client did.'>",
        "<class 'asyncio.exceptions.CancelledError'>:<'mine'>",
        "",
        "<class 'ValueError'>:<'bad row 7'>",
    ]
    assert caplog.records == []


def test_an_error_of_the_server_arrives_as_it_is() -> None:
    def body(ask: Ask, context: Context) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_app(asking(body), ClientApp(), num_supernodes=4)


def draws() -> float:
    numpy = np.random.random()  # noqa: NPY002
    return random.random() + 10 * numpy + 100 * float(torch.rand(()))


def test_a_seed_fixes_every_draw_and_leaves_the_generators_alone() -> None:
    drawing = ClientApp()

    @drawing.train()
    def train(message: Message, context: Context) -> Message:
        return reply_with(draws(), message)

    def run(seed: int | None, *cohorts: tuple[int, ...]) -> list[list[float]]:
        def body(ask: Ask, context: Context) -> None:
            context.state["server"] = MetricRecord({"all": [draws()]})
            for number, cohort in enumerate(cohorts):
                keep(context, ask(*cohort), f"cohort {number}")

        state = run_app(asking(body), drawing, num_supernodes=4, seed=seed)
        return [
            kept(state, "server"),
            *(kept(state, f"cohort {place}") for place in range(len(cohorts))),
        ]

    def seeded() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seeded()
    expected = draws()
    seeded()
    first = run(5, (0, 1, 2, 3), (1, 3))
    assert draws() == expected
    numbers = [number for part in first for number in part]
    assert len(set(numbers)) == len(numbers) == 7
    # Another order, and other nodes in between: the same draws for the same message of the same
    # node.
    server, (of3, of1), (next3, of0, next1) = run(5, (3, 1), (3, 0, 1))
    assert first == [server, [of0, of1, first[1][2], of3], [next1, next3]]
    assert run(6, (0,))[1] != first[1][:1]
    assert len(set(run(None, (0, 1, 2, 3) * 3)[1])) == 12


APP = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()

@client.train()
def train(message, context):
    content = {"m": MetricRecord({"value": context.run_config["model.width"]})}
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    total = 0
    for _ in range(context.run_config["num-rounds"]):
        for node in grid.get_node_ids():
            (reply,) = grid.send_and_receive([Message(RecordDict(), node, "train")])
            total += reply.content["m"]["value"]
    context.state["total"] = MetricRecord({"value": total})
"""


def test_the_app_of_a_folder_runs_with_its_config_and_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of Flower's environment is needed or made: no home folder, no socket."""
    for call in ("connect", "bind"):
        monkeypatch.setattr(socket.socket, call, lambda *_: pytest.fail("a socket"))
    for home in ("HOME", "FLWR_HOME"):
        monkeypatch.setenv(home, str(tmp_path / "home"))
    components = 'serverapp = "counting.parts:server"\nclientapp = "counting.parts:client"'
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.flwr.app.components]\n{components}\n[tool.flwr.app.config]\nnum-rounds ="
        " 2\nmodel.width = 8\n"
    )
    (tmp_path / "counting").mkdir()
    (tmp_path / "counting" / "__init__.py").touch()
    (tmp_path / "counting" / "parts.py").write_text(APP)
    context = run_app(str(tmp_path), num_supernodes=3, run_config={"model": {"width": 5}})
    assert context.state["total"]["value"] == 2 * 3 * 5
    assert context.run_config == {"num-rounds": 2, "model.width": 5}
    assert not (tmp_path / "home").exists()
    with pytest.raises(ConfigError, match=r"got 'rounds'\. Known: model\.width, num-rounds\."):
        run_app(tmp_path, num_supernodes=3, run_config={"rounds": 1})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_supernodes": 0}, r"N \(num_supernodes\) must be an integer of at least 1; got 0\."),
        ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
        ({"run_config": {"a": object()}}, "run_config: The value for key a needs to be of type"),
        ({"client_app": None}, "client_app must be a ClientApp; got NoneType"),
        ({"server_app": "nowhere"}, "client_app must be omitted with an app folder"),
        (
            {"server_app": "nowhere", "client_app": None},
            "pyproject.toml must name serverapp .* FileNotFoundError",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changes: dict[str, Any], error: str) -> None:
    arguments = {
        "server_app": ServerApp(),
        "client_app": ClientApp(),
        "num_supernodes": 2,
        **changes,
    }
    with pytest.raises(ConfigError, match=error) as caught:
        run_app(**arguments)
    assert "\n" not in str(caught.value)


def test_our_own_app_tells_what_may_be_public(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    run = {"rounds": 2, "mechanism": "identity", "output_dir": str(tmp_path / "run")}
    named = dotted(dataset="synthetic", users=12, cohort_size=3, local_engine="loop", **run)
    run_app(apps.server, apps.client, num_supernodes=2, run_config=named)
    assert any("differential privacy" in line for line in caplog.messages)
    assert not any("not private" in line for line in caplog.messages)
