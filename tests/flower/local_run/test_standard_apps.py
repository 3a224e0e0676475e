"""Whole Flower apps on this machine: nothing in them knows that it is not Flower's engine that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from support.whole_apps import BOTH, NODES, linear, part_of, trained

from fedmf.errors import ConfigError
from fedmf.flower import run_app


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
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "32\n"), done.stderr
    assert done.stderr == ""
    assert list(home.iterdir()) == []
