"""Messages a second and start-up of one Flower app under `run_app` and under Flower's Ray engine.

    python simulations/benchmarks/run_app.py [--engines NAMES] [--works NAMES] [--nodes N]
        [--seconds S] [--json]

The app is FedAvg with all nodes in each round and a client app without anything of fedmf. Its work is one of

    add-1k, add-1m   decode the arrays, add a constant, encode them: d = 1,043 and 10⁶ entries
    train            one epoch of a convolutional network with GroupNorm (d = 62,006) on 32 images of 3×32×32

Each pair of engine and work runs in a process of its own. Start-up is the time from the call to the first
reply to one message; the rate is that of rounds after it, aggregation included. Ray's actors have one core
each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

ENGINES = ("run_app workers=1", "run_app workers=4", "ray actors=4")
WORKS = ("add-1k", "add-1m", "train")

client_app = ClientApp()


def network() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 5),
            norm1=nn.GroupNorm(2, 6),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(400, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            fc3=nn.Linear(84, 10),
        )
    )


@client_app.train()
def train(message: Message, context: Context) -> Message:
    state = message.content["arrays"].to_torch_state_dict()
    if "w" in state:
        state = {name: tensor + 0.01 for name, tensor in state.items()}
    else:
        torch.set_num_threads(1)
        model = network()
        model.load_state_dict(state)
        generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        images = torch.randn(32, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (32,), generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in range(0, 32, 8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch : batch + 8]), labels[batch : batch + 8])
            loss.backward()
            optimizer.step()
        state = model.state_dict()
    metrics = MetricRecord({"num-examples": 32})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


def initial(work: str) -> ArrayRecord:
    if work == "train":
        return ArrayRecord(network().state_dict())
    d = {"add-1k": 1043, "add-1m": 1_000_000}[work]
    return ArrayRecord({"w": torch.zeros(d - d // 4), "b": torch.zeros(d // 4)})


def measure(engine: str, work: str, nodes: int, seconds: float) -> dict[str, float]:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app, measured = ServerApp(), {}
    called = time.perf_counter()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = initial(work)
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.01)
        first = next(iter(grid.get_node_ids()))
        content = RecordDict({"arrays": arrays})
        (reply,) = grid.send_and_receive([Message(content, first, "train")])
        assert not reply.has_error(), reply.error
        measured["startup_seconds"] = time.perf_counter() - called
        rounds, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds:
            strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes)
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=4)
            rounds += 4
        measured["messages_per_second"] = rounds * nodes / spent
        measured["messages"] = rounds * nodes

    name, _, workers = engine.replace("=", " ").split()
    if name == "ray":
        from flwr.simulation import run_simulation

        run_simulation(
            server_app,
            client_app,
            nodes,
            backend_config={
                "init_args": {"num_cpus": int(workers), "logging_level": "ERROR", "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    else:
        from fedmf.flower import run_app

        run_app(server_app, client_app, num_supernodes=nodes, workers=int(workers))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--works", nargs="+", default=WORKS, choices=WORKS)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0, help="of rounds, after the first reply")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        (engine,), (work,) = options.engines, options.works
        print(json.dumps(measure(engine, work, options.nodes, options.seconds)))
        return
    rows = []
    for work in options.works:
        for engine in options.engines:
            arguments = ["--one", "--engines", engine, "--works", work]
            arguments += ["--nodes", str(options.nodes), "--seconds", str(options.seconds)]
            done = subprocess.run(
                [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
            )
            row = {"work": work, "engine": engine, **json.loads(done.stdout.splitlines()[-1])}
            row["load"] = os.getloadavg()[0]
            rows.append(row)
            if not options.json:
                print(
                    f"{work:8} {engine:18} {row['messages_per_second']:8.1f} messages/s, first reply after "
                    f"{row['startup_seconds']:.2f} s (load {row['load']:.1f})",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
