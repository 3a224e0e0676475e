"""Whole Flower apps on this machine: nothing in them knows that it is not Flower's engine that runs them."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, run_app
from fedmf.flower.arrays import array_record

NODES = 5
BOTH = pytest.mark.parametrize("workers", [1, 3])
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


# --- a standard app: federated averaging of a linear model


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


@BOTH
def test_federated_averaging_is_what_flower_s_rule_gives_by_hand(workers: int) -> None:
    start = {"weight": torch.tensor([[0.3, 0.1, -0.2]]), "bias": torch.tensor([0.5])}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(min_available_nodes=NODES)
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(dict(start)),
            num_rounds=int(context.run_config["rounds"]),
            train_config=ConfigRecord({"lr": 0.1}),
        )
        context.state["arrays"] = result.arrays
        context.state["evaluation"] = result.evaluate_metrics_clientapp[3]

    context = run_app(server, linear, num_supernodes=NODES, run_config={"rounds": 3}, workers=workers)
    expected = {name: tensor.double() for name, tensor in start.items()}
    weights = np.arange(4, 4 + NODES) / np.arange(4, 4 + NODES).sum()
    for _ in range(3):
        locally = [
            trained({name: tensor.float() for name, tensor in expected.items()}, part, 0.1)[0]
            for part in range(NODES)
        ]
        expected = {
            name: sum(w * state[name].double() for w, state in zip(weights, locally, strict=True))
            for name in start
        }
    arrays = context.state["arrays"].to_torch_state_dict()
    assert arrays.keys() == start.keys()
    for name, tensor in expected.items():  # float32 sums of five
        torch.testing.assert_close(arrays[name].double(), tensor, rtol=1e-5, atol=1e-6)
    assert context.state["evaluation"]["accuracy"] == 1.0


# --- what a client receives is its own


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


# --- client state, mods, lifespans, actions


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


@BOTH
def test_an_app_of_the_older_interface_runs(workers: int) -> None:
    class Client(NumPyClient):
        def __init__(self, part: int) -> None:
            self.part = part

        def fit(self, parameters: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
            return [array + self.part for array in parameters], 1, {}

        def evaluate(self, parameters: list[np.ndarray], config: dict) -> tuple[float, int, dict]:
            return float(parameters[0][0]), 1, {}

    losses: list[float] = []

    def on_evaluation(number: int, arrays: list[np.ndarray], config: dict) -> tuple[float, dict]:
        losses.append(float(arrays[0][0]))
        return losses[-1], {}

    def server_fn(context: Context) -> ServerAppComponents:
        from flwr.common import ndarrays_to_parameters

        strategy = LegacyFedAvg(
            min_available_clients=3,
            min_fit_clients=3,
            min_evaluate_clients=3,
            initial_parameters=ndarrays_to_parameters([np.zeros(2, np.float32)]),
            evaluate_fn=on_evaluation,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    client = ClientApp(client_fn=lambda context: Client(part_of(context)).to_client())
    run_app(ServerApp(server_fn=server_fn), client, num_supernodes=3, workers=workers)
    assert losses == [0.0, 1.0, 2.0]


# --- random numbers


def draws() -> float:
    numpy = np.random.random()  # noqa: NPY002
    return random.random() + 10 * numpy + 100 * float(torch.rand(()))


drawing = ClientApp()


@drawing.train()
def _draw(message: Message, context: Context) -> Message:
    return reply_with(draws(), message)


def drawing_server(*cohorts: tuple[int, ...]) -> ServerApp:
    def body(ask: Ask, context: Context) -> None:
        context.state["server"] = MetricRecord({"all": [draws()]})
        for number, cohort in enumerate(cohorts):
            keep(context, ask(*cohort), f"cohort {number}")
        context.state["server"]["all"].append(draws())

    return asking(body)


def test_a_seed_fixes_every_draw_whatever_the_workers_and_leaves_the_generators_alone() -> None:
    def run(workers: int, seed: int | None, *cohorts: tuple[int, ...]) -> Context:
        return run_app(drawing_server(*cohorts), drawing, num_supernodes=4, workers=workers, seed=seed)

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = draws()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    first = run(1, 5, (0, 1, 2, 3), (1, 3))
    assert draws() == expected
    for workers in (1, 2, 4):
        assert run(workers, 5, (0, 1, 2, 3), (1, 3)).state == first.state
    numbers = [*kept(first, "server"), *kept(first, "cohort 0"), *kept(first, "cohort 1")]
    assert len(set(numbers)) == len(numbers) == 8
    # Another order, and others beside them: the same draws for the same message of the same node.
    other = run(2, 5, (3, 1), (3, 0, 1))
    (of3, of1), (next3, of0, next1) = kept(other, "cohort 0"), kept(other, "cohort 1")
    assert kept(first, "cohort 0") == [of0, of1, kept(first, "cohort 0")[2], of3]
    assert kept(first, "cohort 1") == [next1, next3]
    assert kept(other, "server") == kept(first, "server")
    assert kept(run(1, 6, (0,)), "cohort 0") != kept(first, "cohort 0")[:1]


def test_without_a_seed_no_two_workers_draw_the_same() -> None:
    """NumPy's and PyTorch's generators are copied with the process; Python's seeds itself."""
    parts = tuple(range(4)) * 3
    for draw in (np.random.random, lambda: float(torch.rand(()))):
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context, draw: Callable[[], float] = draw) -> Message:
            return reply_with(draw(), message)

        context = run_app(
            asking(lambda ask, context: keep(context, ask(*parts))), app, num_supernodes=4, workers=4
        )
        assert len(set(kept(context))) == len(parts)


def test_training_gives_the_same_bits_with_any_number_of_workers() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Dropout(), torch.nn.Linear(200, 1))
        x = torch.randn(500, 300)
        loss = model(x).square().sum()
        loss.backward()
        return reply_with((model[0].weight.grad.sum() + loss).item(), message)

    def body(ask: Ask, context: Context) -> None:
        keep(context, ask(*range(4)))

    before = torch.get_num_threads()
    results = [
        kept(run_app(asking(body), app, num_supernodes=4, workers=workers, seed=1)) for workers in (1, 2, 4)
    ]
    assert results[0] == results[1] == results[2]
    assert torch.get_num_threads() == before


# --- errors


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
    arguments = {"server_app": ServerApp(), "client_app": drawing, "num_supernodes": 2, **changes}
    with pytest.raises(ConfigError, match=error) as caught:
        run_app(**arguments)
    assert "\n" not in str(caught.value)


# --- the order of messages


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


# --- apps in folders, and what Flower would need


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        textwrap.dedent("""
        [project]
        name = "counting"
        version = "1.0.0"
        [tool.flwr.app]
        publisher = "me"
        [tool.flwr.app.components]
        serverapp = "counting_of_folder.parts:server"
        clientapp = "counting_of_folder.parts:client"
        [tool.flwr.app.config]
        num-rounds = 2
        model.width = 8
        """)
    )
    package = tmp_path / "counting_of_folder"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(
        textwrap.dedent("""
        from flwr.app import Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        client, server = ClientApp(), ServerApp()

        @client.train()
        def train(message, context):
            return Message(
                RecordDict({"m": MetricRecord({"value": context.run_config["model.width"]})}),
                reply_to=message,
            )

        @server.main()
        def main(grid, context):
            total = 0
            for _ in range(context.run_config["num-rounds"]):
                for node in grid.get_node_ids():
                    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "train")])
                    total += reply.content["m"]["value"]
            context.state["total"] = MetricRecord({"value": total})
        """)
    )
    return tmp_path


def test_the_app_of_a_folder_runs_with_its_config_and_overrides(folder: Path) -> None:
    assert run_app(folder, num_supernodes=3, workers=1).state["total"]["value"] == 2 * 3 * 8
    context = run_app(str(folder), num_supernodes=3, run_config={"model": {"width": 5}}, workers=2)
    assert context.state["total"]["value"] == 2 * 3 * 5
    assert context.run_config == {"num-rounds": 2, "model.width": 5}
    with pytest.raises(
        ConfigError,
        match=r"must have keys of .*; got 'rounds'\. Known: model\.width, num-rounds\.",
    ):
        run_app(folder, num_supernodes=3, run_config={"rounds": 1})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[tool.flwr.app]", "must name serverapp and clientapp under"),
        ("[[[", "is not a TOML file"),
        (
            '[tool.flwr.app.components]\nserverapp = "no_such:app"\nclientapp = "no_such:app"',
            "cannot import 'no_such:app' of the app in",
        ),
        (
            '[tool.flwr.app.components]\nserverapp = "json:nothing"\nclientapp = "json:nothing"',
            "Unable to load attribute nothing from module json",
        ),
        (
            '[tool.flwr.app.components]\nserverapp = "json:loads"\nclientapp = "json:loads"',
            "server_app must be a ServerApp; got function",
        ),
    ],
)
def test_a_folder_without_an_app_is_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        run_app(tmp_path, num_supernodes=2)


def test_nothing_of_flower_s_environment_is_needed_or_made(folder: Path) -> None:
    """No home folder, no socket: both would raise here."""
    probe = f"""
import os, socket
import fedmf.flower
def refused(*_): raise AssertionError("a socket")
socket.socket.connect = socket.socket.bind = refused
from fedmf.flower import run_app
print(run_app({str(folder)!r}, num_supernodes=2, workers=2).state["total"]["value"])
"""
    home = folder / "home"
    home.mkdir(mode=0o500)
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "HOME": str(home), "FLWR_HOME": str(home / "flwr")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "32\n"), done.stderr
    assert done.stderr == ""
    assert list(home.iterdir()) == []
