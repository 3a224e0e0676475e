"""Users trained per second, clip and exact sum included, against a loop of automatic
differentiation.

    python simulations/benchmarks/engine.py [--models mlp cnn ...] [--turns 11] [--engines auto ...]
        [--before TREE] [--peers NAME[=PYTHON] ...] [--json]

Users have 20 examples and take two steps of 10 at learning rate 0.1, clip norm 1, all in one
thread. Each turn trains some users by every way, one after the other; rates and ratios are medians
over turns, in processor time, so that other programs count for little. TREE is another version of
this repository. Peers are other libraries: jax and jax-privacy (`engine_jax.py`), pfl, flwr, opake
and opacus (`engine_peers.py`); each trains in a process of its own, at its turn, by this Python or
by the one that is named.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.models import with_lora
from fedmf.training import LocalSGD, LocalTrainer, Task, classification, next_token

EXAMPLES = 20
BATCH = 10
CLASSES = 10
TOKENS = 200
LENGTH = 20
LOCAL = LocalSGD(batch_size=BATCH, learning_rate=0.1)


class Own(nn.Module):
    """Layers in a module with a forward of its own."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.layers = nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        """One layer after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


class Tutorial(nn.Module):
    """The network of PyTorch's MNIST tutorials, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """As there."""
        x = torch.relu(torch.max_pool2d(self.conv1(x), 2))
        x = torch.relu(torch.max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.fc1(x.view(-1, 320)))
        return torch.log_softmax(self.fc2(x), dim=1)


class Residual(nn.Module):
    """Two convolutions with group normalization around an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [
            (nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.GroupNorm(4, channels))
            for _ in "ab"
        ]
        self.inner = nn.Sequential(*layers[0], nn.ReLU(), *layers[1])

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum."""
        return torch.relu(x + self.inner(x))


class Words(nn.Module):
    """The next token by any layer."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.layer = layer
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position."""
        found = self.layer(self.embedding(tokens))
        return self.head(found[0] if isinstance(found, tuple) else found)


def dense(*sizes: int) -> nn.Sequential:
    """Dense layers with ReLU between."""
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def cnn() -> nn.Sequential:
    """conv16-pool-conv32-pool-fc128-fc10: 206,922 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def lenet() -> nn.Sequential:
    """LeNet-5 with tanh and means."""
    return nn.Sequential(
        *(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
        ),
        *(
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
        ),
        nn.Linear(84, CLASSES),
    )


def resnet() -> nn.Module:
    """Three residual blocks of 16 channels."""
    blocks = nn.Sequential(*(Residual(16) for _ in range(3)))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), blocks, nn.Flatten(), nn.Linear(16 * 14 * 14, CLASSES)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: dense(784, CLASSES),
    "mlp": lambda: dense(784, 128, 64, CLASSES),
    "small mlp": lambda: dense(784, 64, CLASSES),
    "cnn": cnn,
    "cnn, own module": lambda: Own(cnn()),
    "lenet": lenet,
    "mnist tutorial": Tutorial,
    "resnet-gn": resnet,
    "lora": lambda: with_lora(dense(784, 128, CLASSES), rank=8, alpha=8.0, targets=["3"]),
    "lstm": lambda: Words(nn.LSTM(32, 32, batch_first=True), 32),
    "transformer": lambda: Words(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 32
    ),
}


def task_of(model: str, users: int) -> Task:
    """A model and users with made-up examples."""
    torch.manual_seed(0)
    module = MODELS[model]()
    count = users * EXAMPLES
    owned = np.split(np.arange(count), users)
    names = [f"u{u}" for u in range(users)]
    if model in ("lstm", "transformer"):
        tokens = torch.randint(TOKENS, (count, LENGTH + 1))
        features = tokens[:, :-1].contiguous()
        labels = tokens[:, 1:].contiguous()
        return next_token(
            InMemoryDataset(features, labels, owned, names, features, labels), module, TOKENS
        )
    features = torch.randn(count, 1, 28, 28)
    labels = torch.randint(CLASSES, (count,))
    return classification(
        InMemoryDataset(features, labels, owned, names, features, labels, CLASSES), module
    )


def loop(task: Task) -> Callable[[], object]:
    """What one would write: automatic differentiation on views of one vector."""
    module = copy.deepcopy(task.model.module).to(task.device)
    loss = task.loss
    parameters = [p for p in module.parameters() if p.requires_grad]
    start = torch.cat([p.detach().flatten() for p in parameters])
    flat = start.clone()
    slopes = torch.zeros_like(start)
    for p, value, slope in zip(
        parameters, *(task.model.unflatten(v).values() for v in (flat, slopes)), strict=True
    ):
        p.data = value
        p.grad = slope

    def train() -> Tensor:
        total = torch.zeros_like(start)
        for user in range(task.dataset.users):
            features, labels = task.dataset.examples(np.array([user]))
            flat.copy_(start)
            for rows in torch.randperm(EXAMPLES).split(BATCH):
                slopes.zero_()
                loss(module(features[rows]), labels[rows]).mean().backward()
                flat.sub_(slopes, alpha=LOCAL.learning_rate)
            update = flat - start
            total += update * min(1.0, 1.0 / float(update.norm()))
        return total

    return train


def engines(model: str, users: int, names: list[str]) -> dict[str, Callable[[], object]]:
    """By name: trains all users once."""
    made: dict[str, Callable[[], object]] = {}
    for engine in names:
        task = task_of(model, users)
        try:
            trainer = LocalTrainer(task, replace(LOCAL, engine=engine))  # type: ignore[arg-type]
        except ValueError:  # torch.func cannot batch it
            continue
        origin = task.model.initial()
        names = list(task.dataset.user_ids)

        def train(
            trainer: LocalTrainer = trainer, origin: Tensor = origin, names: list[str] = names
        ) -> object:
            return trainer.add_updates(origin, names, 0, ClippedSum(origin.numel(), 1.0))

        made[f"engine {engine} ({getattr(trainer, 'path', 'before')})"] = train
    return made


def seconds(train: Callable[[], object]) -> float:
    """Processor time."""
    begun = time.process_time()
    train()
    return time.process_time() - begun


class Other:
    """A process that trains by one way: another tree, or another program.

    Args:
        command: of the process, which `serve`s.
        tree: whose fedmf it imports.
    """

    def __init__(self, command: list[str], tree: str | Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def ask(self, line: str) -> str:
        """Its answer: to a model and a number of users "ready", or "none"; to "turn" processor
        seconds.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def seconds(self) -> float:
        """Processor time of a turn."""
        return float(self.ask("turn"))


def serve(make: Callable[[str, int], Callable[[], object] | None]) -> None:
    """Answer `Other.ask` on standard input."""
    train: Callable[[], object] | None = None
    for line in sys.stdin:
        if line.strip() == "turn":
            assert train is not None
            print(seconds(train), flush=True)
        else:
            model, users = json.loads(line)
            train = make(model, users)
            print("ready" if train else "none", flush=True)


def main() -> None:
    """Print a line for each model and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=("auto", "vmap", "loop"), default=["auto"])
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--users", type=int, default=64, help="trained in a turn")
    parser.add_argument("--before", type=Path, help="a tree of another version")
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="NAME[=PYTHON]", help="other libraries"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", action="store_true", help="train as standard input says")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        serve(lambda model, users: next(iter(engines(model, users, ["auto"]).values()), None))
        return
    here = Path(__file__).resolve()
    others = dict[str, Other]()
    if options.before:
        others["before"] = Other([sys.executable, str(here), "--serve"], options.before)
    for peer in options.peers:
        name, _, python = peer.partition("=")
        script = here.with_name("engine_jax.py" if name.startswith("jax") else "engine_peers.py")
        others[name] = Other([python or sys.executable, str(script), name], here.parents[2])
    for model in options.models:
        local = {
            "loop": loop(task_of(model, options.users)),
            **engines(model, options.users, options.engines),
        }
        made = {name: lambda train=train: seconds(train) for name, train in local.items()}
        asked = {
            name: other.ask(json.dumps([model, options.users])) for name, other in others.items()
        }
        made |= {name: others[name].seconds for name, answer in asked.items() if answer == "ready"}
        spent: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(options.turns + 1):
            for name, train in made.items():
                took = train()
                if turn:  # the first one warms up
                    spent[name].append(took)
        for name, times in spent.items():
            ratio = statistics.median(a / b for a, b in zip(spent["loop"], times, strict=True))
            row: dict[str, Any] = {"name": f"{model}: {name}", "unit": "users/s", "ratio": ratio}
            row |= {"value": options.users / statistics.median(times), "baseline": "loop"}
            text = f"{row['name']:<45}{row['value']:>10,.0f} users/s {ratio:7.2f} x the loop"
            print(json.dumps(row) if options.json else text, flush=True)


if __name__ == "__main__":
    main()
