"""The workload on Flower's Ray engine with its plain FedAvg, a message for each user: no clipping, no noise.

Each of 2 workers (one a core) holds the data once. Prints the seconds of each round as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

import torch
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn


def client_app(name: str) -> ClientApp:
    """Plain PyTorch for one user; ``partition-id`` is its number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        features, labels, model = workload.held(name)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.LEARNING_RATE)
        user = int(context.node_config["partition-id"])
        order = user * workload.EXAMPLES + torch.randperm(workload.EXAMPLES)
        for rows in order.split(workload.BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.EXAMPLES}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    parser.add_argument("--rounds", type=int, default=workload.WARM_UP + workload.ROUNDS)
    options = parser.parse_args()
    times: list[float] = []
    server = ServerApp()

    def note(server_round: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    def everybody(replies: list[RecordDict], weighting_metric_name: str) -> MetricRecord:
        assert len(replies) == workload.COHORT, "a client failed"
        return MetricRecord()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        FedAvg(
            fraction_train=workload.COHORT / workload.USERS,
            fraction_evaluate=0.0,
            min_train_nodes=workload.COHORT,
            min_available_nodes=workload.USERS,
            train_metrics_aggr_fn=everybody,
        ).start(
            grid,
            ArrayRecord(workload.build(options.model).state_dict()),
            num_rounds=options.rounds,
            evaluate_fn=note,
        )

    run_simulation(
        server,
        client_app(options.model),
        num_supernodes=workload.USERS,
        backend_config={
            "init_args": {"num_cpus": 2, "logging_level": "ERROR", "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    seconds = [after - before for before, after in itertools.pairwise(times)]
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
