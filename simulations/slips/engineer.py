"""Mistakes of an engineer who makes an app private, in Python and in Flower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slips.attempt import ROUNDS, Mistake, program

WHO = "engineer"

DATA = """
import dataclasses, sys
import numpy as np, torch
import fedmf
from fedmf.training import classification

torch.manual_seed(0)
users, each = 40, 10
x = torch.randn(users * each, 8)
y = (x[:, 0] + x[:, 1] > 0).long()
owned = [np.arange(u * each, (u + 1) * each) for u in range(users)]
names = [f"user {u}" for u in range(users)]
tests, answers = torch.randn(200, 8), torch.zeros(200, dtype=torch.long)
answers[:] = (tests[:, 0] + tests[:, 1] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
rounds, size, classes, local = ROUNDS, 8, 2, fedmf.LocalSGD()
privacy = fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3)
"""

TRAIN = """
data = fedmf.InMemoryDataset(x, y, owned, names, tests, answers, classes)
run = fedmf.Run(
    task=classification(data, model),
    cohorts=fedmf.CyclicCohorts(rounds=rounds, size=size),
    privacy=privacy,
    local=local,
)
result = fedmf.simulate(run, "run")
print(result.statement.render_text())
"""

APP = """
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian
from torch import nn
from fedmf.flower import CorrelatedNoise, InProcessGrid

client_app = ClientApp()
torch.manual_seed(0)
norm = nn.Identity()
fault = lambda: None
inner, users, start_rounds, keys, nodes = FedAvg(), 40, 10, {}, 40

def make_model():
    return nn.Sequential(nn.Linear(20, 16), norm, nn.ReLU(), nn.Linear(16, 2))

@client_app.train()
def train(message, context):
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fault()
    x = torch.randn(50, 20)
    y = (x[:, 0] > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    said = MetricRecord({"num-examples": 50})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": said}), reply_to=message)
"""

SERVE = """
strategy = CorrelatedNoise(inner, **{**dict(epsilon=8.0, delta=1e-5, clipping_norm=0.5, num_users=users,
                           users_per_round=10, num_rounds=10, run_dir="run"), **keys})
strategy.start(grid=InProcessGrid(client_app, nodes=nodes), num_rounds=start_rounds,
               initial_arrays=ArrayRecord(make_model().state_dict()))
print(strategy.statement().render_text())
"""


def training(change: str) -> Callable[[Path], list[str]]:
    """The program with lines between its data and its training."""
    return program(DATA.replace("ROUNDS", str(ROUNDS)) + change + "\n" + TRAIN)


def app(change: str, late: str = "") -> Callable[[Path], list[str]]:
    """The Flower app with lines before its server."""
    return program(APP + change + "\n" + SERVE + late)


PUSHED = """
import fedmf
budget = dict(epsilon=8.0, delta=1e-5, norm_bound=1.0, rounds=100)
"""

ENGINEER = (
    Mistake(
        WHO,
        "`owned` as a dict by user id",
        ("owned", "dict|mapping|sequence"),
        training("owned = dict(zip(names, owned))"),
    ),
    Mistake(
        WHO,
        "one feature is NaN in every third example",
        ("contribution|example|update", "zero|NaN|finite|fail"),
        training("x[::3, 0] = float('nan')"),
    ),
    Mistake(
        WHO,
        "labels 1 and 2 with two classes",
        ("label", "class|0\\.\\.|below 2"),
        training("y += 1; answers += 1"),
    ),
    Mistake(WHO, "two users of one name", ("unique|different|twice", "id"), training("names[1] = names[0]")),
    Mistake(
        WHO,
        "pixels 0..255, not scaled",
        ("scale|range|norm|learning-rate|diverge|too high", "local|feature|update"),
        training("x = (x * 60 + 128).clamp(0, 255); tests = (tests * 60 + 128).clamp(0, 255)"),
    ),
    Mistake(
        WHO,
        "test part scaled, training part not",
        ("test", "scale|range|differ"),
        training("x = x * 100 + 50"),
    ),
    Mistake(
        WHO,
        "a model with BatchNorm",
        ("BatchNorm|running statistics|buffer",),
        training(
            "normed = torch.nn.BatchNorm1d(16)\n"
            "model = torch.nn.Sequential(torch.nn.Linear(8, 16), normed, torch.nn.Linear(16, 2))"
        ),
    ),
    Mistake(
        WHO,
        "all parameters are frozen",
        ("requires_grad|frozen|trainable|train",),
        training("[p.requires_grad_(False) for p in model.parameters()]"),
    ),
    Mistake(
        WHO,
        "a clip norm of 1e-6",
        ("clip", "norm|clipped"),
        training("privacy = dataclasses.replace(privacy, clip_norm=1e-6)"),
    ),
    Mistake(
        WHO,
        "every client of a Flower app fails",
        ("contribution|client|repl", "fail|zero|error"),
        app("def fault():\n    raise FileNotFoundError('data.csv')"),
    ),
    Mistake(
        WHO,
        "`num_rounds` of `start` above the strategy's",
        ("num_rounds|rounds", "10"),
        app("start_rounds = 30"),
    ),
    Mistake(
        WHO,
        "more users promised than nodes",
        ("40|users", "30|nodes"),
        app(
            "import fedmf.runs\n"
            "new = hasattr(fedmf.runs, 'Waiting')\n"
            "waiting = fedmf.runs.Waiting(handshake_timeout=5.0) if new else "
            "fedmf.Execution(messages='per-user', handshake_timeout=5.0)\n"
            "nodes, keys = 30, {'waiting' if new else 'execution': waiting}"
        ),
    ),
    Mistake(WHO, "FedMedian inside the wrapper", ("FedMedian", "mean"), app("inner = FedMedian()")),
    Mistake(
        WHO,
        "BatchNorm in a Flower app",
        ("running|BatchNorm|buffer",),
        app("norm = nn.BatchNorm1d(16)"),
    ),
    Mistake(
        WHO,
        "a service pushes rows of a dictionary without columns",
        ("column|dimension",),
        program(
            PUSHED
            + "s = fedmf.PrivateStream('s', dimension=2, **budget)\ns.push({'a': 0.1, 'b': 0.2}, user='ann')"
        ),
    ),
)
