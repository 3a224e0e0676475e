"""Four kinds of Flower apps, private and not: a personal head, a changing learning rate, methods of
the strategy, LoRA.

    python simulations/flower_kinds.py [KIND ...] [--ray] [--json]

Each app has four users, who all take part in every round. It runs without privacy, privately in one
go, and privately with an interruption after half of the rounds, which must release the same model;
only a personal head starts again, since virtual nodes lose their state with the process. Nodes are
in this process, or Flower's simulation engine starts them (Ray). A row has the seconds a round of
both apps, and whether the interrupted run is the same. Exit code 1 if an app did not do so.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from fedmf import CyclicCohorts, UserLevel
from fedmf.flower import ClientReportedIdentity, CorrelatedNoise, run_app, user_id_mod

USERS: Final = 4
ROUNDS: Final = 6
DIMENSION: Final = 20
KINDS: Final = ("personal-head", "learning-rate", "methods", "lora")


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(DIMENSION, 16)
        self.down = nn.Linear(DIMENSION, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def body(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return LowRank() if kind == "lora" else nn.Linear(DIMENSION, 16)


def head() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(16, 2)


def shared_model(kind: str) -> nn.Module:
    """The model that the server has: without the head, if it is personal."""
    if kind == "personal-head":
        return nn.ModuleDict({"body": body(kind)})
    return nn.ModuleDict({"body": body(kind), "head": head()})


def examples(user: int) -> tuple[Tensor, Tensor]:
    """Examples whose labels every second user has the other way round."""
    generator = torch.Generator().manual_seed(user)
    features = torch.randn(200, DIMENSION, generator=generator)
    labels = features[:, :3].sum(1) > 0
    return features, (labels ^ bool(user % 2)).long()


def client_app(kind: str) -> ClientApp:
    app = ClientApp(mods=[user_id_mod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = shared_model(kind)
        arrays = message.content.array_records["arrays"]
        model.load_state_dict(arrays.to_torch_state_dict())
        parts = nn.ModuleDict({"body": model["body"], "head": head()})  # type: ignore[index]
        if kind == "personal-head":
            if "head" in context.state:
                kept = context.state.array_records["head"].to_torch_state_dict()
                parts["head"].load_state_dict(kept)
        else:
            parts["head"] = model["head"]  # type: ignore[index]
        rate = float(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
        trained = [p for p in parts.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=rate)
        features, labels = examples(int(context.node_config["partition-id"]))
        for _ in range(20):
            optimizer.zero_grad()
            output = parts["head"](torch.relu(parts["body"](features)))
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
        if kind == "personal-head":
            context.state["head"] = ArrayRecord(parts["head"].state_dict())
        metrics = MetricRecord({"num-examples": len(labels)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


class Strategy(FedAvg):
    """A strategy with a method of its own, and a learning rate that changes by round."""

    folder = ""
    halves = False

    def save_in(self, folder: str) -> None:
        self.folder = folder

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self.halves and server_round % 2 == 0:
            config["lr"] = 0.5 * float(config["lr"])  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)


class Stops(Exception):
    """The interruption."""


def run_once(kind: str, run_dir: str, private: bool, stop_after: int, ray: bool) -> dict[str, Any]:
    """Run an app up to a round; its model and the seconds of its rounds."""
    outcome: dict[str, Any] = {"times": []}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        outcome["times"].append(time.monotonic())
        if server_round == stop_after and stop_after < ROUNDS:
            raise Stops
        outcome["model"] = [array.numpy() for array in arrays.values()]
        return None

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy: Any = Strategy(fraction_evaluate=0.0)
        strategy.halves = kind == "learning-rate"
        if private:
            strategy = CorrelatedNoise(
                strategy,
                UserLevel(epsilon=100.0, delta=1e-5, clip_norm=1.0, noise_seed=1),
                CyclicCohorts(rounds=ROUNDS, users_per_round=USERS),
                users=ClientReportedIdentity([str(user) for user in range(USERS)]),
                frozen=("*.base.*",) if kind == "lora" else (),
                run_dir=run_dir,
            )
        strategy.save_in("models")
        try:
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(shared_model(kind).state_dict()),
                num_rounds=ROUNDS,
                train_config=ConfigRecord({"lr": 0.5}),
                evaluate_fn=evaluate,
            )
        except Stops:
            pass
        finally:
            if private:
                strategy.close()
        outcome["folder"] = strategy.folder

    if ray:
        from flwr.simulation import run_simulation

        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server_app, client_app(kind), USERS, backend_config=backend)  # type: ignore
    else:
        run_app(server_app, client_app(kind), num_supernodes=USERS, seed=0)
    return outcome


def called(ray: bool, kind: str, run_dir: str, private: bool, stop_after: int) -> dict[str, Any]:
    """Run an app; with Ray, which changes the process, in a process of its own."""
    if not ray:
        return run_once(kind, run_dir, private, stop_after, ray)
    import flower_kinds  # Ray's workers import the client app from this file

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(flower_kinds.run_once, (kind, run_dir, private, stop_after, ray))


def seconds(outcome: dict[str, Any]) -> float:
    """The median seconds of a round."""
    return float(np.median(np.diff(outcome["times"])))


def row_of(kind: str, ray: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        plain = called(ray, kind, "", False, ROUNDS)
        whole = called(ray, kind, f"{folder}/whole", True, ROUNDS)
        called(ray, kind, f"{folder}/stopped", True, ROUNDS // 2)
        resumed = called(ray, kind, f"{folder}/stopped", True, ROUNDS)
        failures = (Path(folder) / "stopped/failures.jsonl").read_text()
    same = all(map(np.array_equal, whole["model"], resumed["model"]))
    moved = max(
        float(np.abs(a - b).max()) for a, b in zip(whole["model"], resumed["model"], strict=True)
    )
    return {
        "app": kind,
        "engine": "ray" if ray else "run_app",
        "seconds_a_round": round(seconds(plain), 3),
        "seconds_a_round_private": round(seconds(whole), 3),
        "resumed_is_same": same,
        "largest_difference": moved,
        "good": not failures and resumed["folder"] == "models" and (same or kind == KINDS[0]),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--ray", action="store_true", help="Flower's simulation engine")
    parser.add_argument("--json", action="store_true", help="one JSON object per app")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    folder = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    good = True
    for kind in given.kinds or KINDS:
        row = row_of(kind, given.ray)
        good = good and row["good"]
        print(json.dumps(row) if given.json else row, flush=True)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
