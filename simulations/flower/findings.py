"""What silently went wrong in apps by others: each as a program, with what its screen says.

    python simulations/flower/findings.py [--tree CHECKOUT] [--only WORD]

Every program is a small Flower app made private, run in a folder and a process of its own, on nodes there;
`--tree` runs it with another checkout of fedmf. The last column is judged from exit code and screen alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[2]
LONGEST = 120.0

APP = """
import sys, torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from fedmf.flower import CorrelatedNoise, InProcessGrid

torch.manual_seed(0)
users, nodes, rounds, keys, starts = 40, 40, 10, {}, {}
inner, client_app = FedAvg(fraction_evaluate=0.0), ClientApp()

def make_model():
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))

def sent(model):
    return ArrayRecord(model.state_dict())

def trained(arrays):
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    x = torch.randn(50, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
    return sent(model)

def initial():
    return sent(make_model())

@client_app.train()
def train(message, context):
    arrays = trained(message.content["arrays"])
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 50, "loss": 0.5})}
    return Message(RecordDict(content), reply_to=message)
"""

SERVE = """
strategy = CorrelatedNoise(inner, **{**dict(epsilon=8.0, delta=1e-5, clipping_norm=0.5, num_users=users,
                           users_per_round=10, num_rounds=rounds, run_dir="run", noise_seed=1), **keys})
grid = InProcessGrid(client_app, nodes=nodes)
result = strategy.start(grid=grid, num_rounds=rounds, initial_arrays=initial(), **starts)
"""

LISTS = """
def make_model():
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
def sent(model):
    return ArrayRecord([value.numpy() for value in model.state_dict().values()])
def trained(arrays):
    model = make_model()
    names = model.state_dict()
    given = [torch.from_numpy(array.numpy().copy()) for array in arrays.values()]
    model.load_state_dict({name: value.to(names[name].dtype) for name, value in zip(names, given)})
    model(torch.randn(50, 20))
    return sent(model)
"""

TIED = """
from copy import deepcopy
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
def make_model():
    return Tied()
def trained(arrays):
    model = Tied()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        model.embed.weight += 0.01
    return sent(model)
"""

APART = """
arrays = result.arrays.to_torch_state_dict()
print("names apart by", round(float((arrays["embed.weight"] - arrays["head.weight"]).norm()), 3))
"""


@dataclass(frozen=True)
class Finding:
    """Something that went wrong without a word.

    Args:
        what: it is.
        program: what is run.
        judge: from exit code, screen and seconds, what a user gets.
    """

    what: str
    program: str
    judge: Callable[[int, Sequence[str], float], str]


def count(pattern: str) -> Callable[[int, Sequence[str], float], str]:
    """How many lines of the screen have a pattern, and how the program ended."""

    def judge(code: int, lines: Sequence[str], _seconds: float) -> str:
        found = [line for line in lines if re.search(pattern, line)]
        return f"exit {code}, {len(found)} lines with /{pattern}/" + (
            f": {found[0].strip()[:150]}" if found else ""
        )

    return judge


def said(code: int, lines: Sequence[str], seconds: float) -> str:
    """Its last line and how long it took."""
    ended = f"exit {code}" if seconds < LONGEST else "no word until it was stopped"
    return f"{ended} after {seconds:.0f} s: {lines[-1].strip()[:200] if lines else ''}"


SUBCLASS = """
class Own(FedAvg):
    def aggregate_evaluate(self, server_round, replies):
        return super().aggregate_evaluate(server_round, replies)
    def summary(self):
        print("own summary")
inner, keys = Own(fraction_evaluate=0.0), {"trusted_subclass": True}
"""
EVALUATED = """
def evaluate(number, arrays):
    return MetricRecord({"loss": 490.0 + number})
starts = {"evaluate_fn": evaluate}
"""
NODES = """
users, nodes, keys = 9, 8, {"users_per_round": 3}
starts = {"timeout": 25}
"""
METRICS = """
inner = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=lambda replies, weight: {
    "loss": sum(r["metrics"]["train_loss"] for r in replies)})
"""
FAILS = "def trained(arrays):\n    raise FileNotFoundError('dataset-path')\n"
MISSING = "def trained(arrays):\n    return ArrayRecord({'0.weight': arrays['0.weight']})\n"
HALF = (
    "def trained(arrays):\n    return ArrayRecord([a.numpy().astype('float16') for a in arrays.values()])\n"
)
HEALTH = (
    "import fedmf\nkeys = {'beside': [fedmf.Health()]} if hasattr(fedmf, 'Health') else {}\nrounds = 40\n"
)
FLOWERS = r"results and 0 failures"
DEAD = r"contribut"

FINDINGS = (
    Finding("1 every client raises: what Flower says of it", FAILS, count(FLOWERS)),
    Finding("1 every client raises: told by noisy counts", FAILS + HEALTH, count(DEAD)),
    Finding("1 an array is missing in every reply: told by noisy counts", MISSING + HEALTH, count(DEAD)),
    Finding("1 replies in float16: told by noisy counts", HALF + HEALTH, count(DEAD)),
    Finding("2 nine users, eight nodes", NODES, said),
    Finding("3 one weight under two names", TIED, said),
    Finding(
        "3 the same, said to be one", TIED + "keys = {'tied': [('embed.weight', 'head.weight')]}\n", said
    ),
    Finding("4 BatchNorm in a list of arrays", LISTS, said),
    Finding("5 a metrics function of the app's own", METRICS, count(r"Error|KeyError")),
    Finding("5 a subclass's own methods", SUBCLASS, count(r"aggregate_evaluate|summary.*not called")),
    Finding("6 the screen: rounds and epsilon", "", count(r"round \d+.*(ε|epsilon)")),
    Finding("6 the screen: run directory and noise", "", count(r"run directory|multiplier|/run")),
    Finding("6 the screen: evaluate_fn", EVALUATED, count(r"round \d+.*49\d")),
)


def tried(finding: Finding, tree: Path) -> str:
    """What a user gets of it."""
    program = APP + finding.program + SERVE + (APART if finding.program.startswith(TIED) else "")
    with tempfile.TemporaryDirectory() as folder:
        known = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "HOME": folder,
            "XDG_STATE_HOME": folder,
            "COLUMNS": "400",
        }
        begun, command = time.monotonic(), [sys.executable, "-c", program]
        where: dict[str, Any] = {"cwd": folder, "env": known, "stdout": subprocess.PIPE}
        try:
            done = subprocess.run(command, **where, stderr=subprocess.STDOUT, timeout=LONGEST, check=False)
            screen, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as waiting:
            screen, code = waiting.stdout or b"", 0
    lines = [line for line in screen.decode(errors="replace").splitlines() if line.strip()]
    return finding.judge(code, lines, time.monotonic() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=HERE)
    parser.add_argument("--only", default="", help="a word of the finding")
    options = parser.parse_args()
    table = Table("finding", "what a user gets")
    for finding in FINDINGS:
        if options.only in finding.what:
            table.add_row(finding.what, tried(finding, options.tree.resolve()))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
