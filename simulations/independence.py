"""Does any user's data move another user's integers? A-B-A over paths, models and kinds; planted faults.

    python simulations/independence.py [--neighbours 16] [--part 1/2]

For each model, path and kind of hostile user, A is trained alone, after, last and first among so many hostile
users. A cell is equal if A's integers are the same each time.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.data.structure import TensorStructure
from fedmf.errors import ConfigError
from fedmf.training import LocalSGD, LocalTrainer, Task, classification, dependence, next_token, preflight
from fedmf.training.compiled import NotAChain, engine, plan_of, steps
from fedmf.training.engines import OneByOne, OwnRows, Together
from fedmf.training.independence import HOSTILE, hostile_users, integers
from fedmf.training.local import trainer_on

Step = Callable[[nn.Module, Tensor], Tensor]
LOCAL, TOKENS = LocalSGD(batch_size=2, learning_rate=0.05, momentum=0.5), 23


def outside(values: Tensor, structure: TensorStructure) -> None:
    """Tokens and labels V and −1."""
    if structure.bound is not None:
        values.view(-1)[::2], values.view(-1)[1::2] = structure.bound, -1


KINDS = {**HOSTILE, "outside": (outside, 1)}


def data(features: Tensor, labels: Tensor) -> InMemoryDataset:
    return InMemoryDataset(features, labels, [np.arange(len(labels))], ["u"], features, labels, 4)


def images(*layers: nn.Module, channels: int = 1, side: int = 10) -> Task:
    """A chain of layers with a dense head."""
    features = torch.randn(4, channels, side, side)
    chain = nn.Sequential(*layers, nn.Flatten())
    return classification(
        data(features, torch.arange(4)), chain.append(nn.Linear(chain(features).shape[1], 4))
    )


class Own(nn.Module):
    """A function of a module: nothing looks inside."""

    def __init__(self, inner: nn.Module, step: Step = lambda m, x: m(x)) -> None:
        super().__init__()
        self.inner, self.step = inner, step

    def forward(self, x: Tensor) -> Tensor:
        """Its outputs."""
        return self.step(self.inner, x)


class Words(nn.Module):
    """The next token from embeddings by any layer."""

    def __init__(self, layer: nn.Module, padding: int | None = None, tied: bool = False) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(TOKENS, 8, padding_idx=padding), layer
        self.head = nn.Linear(8, TOKENS)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position."""
        found = self.layer(self.embedding(tokens))
        return self.head(found[0] if isinstance(found, tuple) else found)


#: Channels of inputs and of two convolutions.
CHANNELS = (1, 1, 1), (1, 6, 16), (1, 10, 20), (1, 8, 16), (3, 5, 7), (2, 16, 3), (1, 17, 33), (1, 33, 2)
WIDER = (3, 31, 15), (4, 15, 32), (16, 9, 12), (17, 3, 18)


def convolutions() -> Iterator[tuple[str, Task]]:
    """Channels 1–33, strides, pools, groups."""
    for c, a, b in (*CHANNELS, *WIDER):
        layers = nn.Conv2d(c, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 3), nn.ReLU()
        yield f"conv {c}-{a}-{b}", images(*layers, channels=c)
    pool = nn.MaxPool2d(2)
    for a in (4, 13, 20):
        layers = nn.Conv2d(1, a, 5), pool, nn.ReLU(), nn.Conv2d(a, 6, 3, padding=1), pool
        yield f"5x5 conv {a}", images(*layers, side=12)
    for a in (2, 8, 33):
        layers = nn.Conv2d(3, a, 3, stride=2), nn.ReLU(), nn.Conv2d(a, 5, 2)
        yield f"stride 2, {a}", images(*layers, channels=3)
    for a in (2, 4, 16):
        layers = nn.Conv2d(2, a, 3, groups=2), nn.ReLU(), nn.AvgPool2d(2)
        yield f"groups of 2, {a}", images(*layers, channels=2)
    yield "depthwise", images(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 9, 1), nn.GELU(), channels=6)


def texts() -> Iterator[tuple[str, Task]]:
    """Ten modules that look tokens up."""
    for name, module in {
        "words": Words(nn.Identity()),
        "padding": Words(nn.Tanh(), padding=0),
        "last padding": Words(nn.Identity(), padding=-1),
        "tied": Words(nn.Tanh(), tied=True),
        "norm": Words(nn.LayerNorm(8)),
        "LSTM": Words(nn.LSTM(8, 8, batch_first=True)),
        "GRU": Words(nn.GRU(8, 8, batch_first=True)),
        "RNN": Words(nn.RNN(8, 8, batch_first=True)),
        "transformer": Words(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        "mixing": Words(Own(nn.Linear(5, 5), lambda m, x: m(x.transpose(1, 2)).transpose(1, 2))),
    }.items():
        tokens = torch.randint(TOKENS, (6, 6))
        yield name, next_token(data(tokens[:, :-1], tokens[:, 1:]), module, TOKENS)


def numbers(module: nn.Module) -> Task:
    """Twelve numbers to four classes."""
    return classification(data(torch.randn(4, 12), torch.arange(4)), module)


def owns() -> Iterator[tuple[str, Task]]:
    """Ten modules of one's own on numbers."""
    bias = nn.Parameter(torch.zeros(4))
    steps: dict[str, Step] = {
        "linear": lambda m, x: m(x),
        "residual": lambda m, x: m(x) + x[:, :4],
        "squares": lambda m, x: m(x * x),
        "scaled": lambda m, x: m(nn.functional.normalize(x, dim=1)),
        "sorted": lambda m, x: m(x.sort(dim=1).values),
        "sines": lambda m, x: m(x.sin()),
        "clamped": lambda m, x: m(x.clamp(-1, 1)),
        "softmax": lambda m, x: m(x.softmax(dim=1)),
        "outer": lambda m, x: m((x[:, :, None] * x[:, None]).mean(dim=2)),
        "bias": lambda m, x: m(x) + bias,
    }
    for name, step in steps.items():
        yield name, numbers(Own(nn.Linear(12, 4), step))


def cell(task: Task, path: Any, kind: str, neighbours: int) -> bool:
    """Whether A's integers are the same before, after, last and first among hostile users of a kind."""
    made = hostile_users(task, 3, {f"{kind} {i}": KINDS[kind] for i in range(neighbours)})
    trainer = LocalTrainer(made, LOCAL, path=path, threads=1)
    alone, failed = integers(trainer, made, ["A"])
    others = list(made.dataset.user_ids[1:])
    hostile, _ = integers(trainer, made, others)
    again = [integers(trainer, made, ["A"])[0]]
    again += [integers(trainer, made, users)[0] - hostile for users in ([*others, "A"], ["A", *others])]
    return bool(alone.any()) and not failed and all(torch.equal(alone, other) for other in again)


def is_compiled(task: Task) -> bool:
    """Whether compiled steps train a task."""
    with suppress(NotAChain):
        return plan_of(task, LOCAL) is not None
    return False


def refused(task: Task) -> bool:
    """Whether preflight refuses a task."""
    with suppress(ConfigError):
        preflight(task, LOCAL)
        return False
    return True


def clamped(module: nn.Module, x: Tensor) -> Tensor:
    """Outputs, once a parameter was changed in place."""
    for parameter in module.parameters():
        parameter.data.clamp_(min=0)
    return module(x)


def faults() -> Iterator[tuple[str, bool]]:
    """Each fault, and whether it is seen."""
    network = dict(convolutions())["conv 1-8-16"]
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        source = Path(steps.__file__).read_text().replace("    clear(arena, 0, arena.size)\n", "")
        Path(folder, "uncleared.py").write_text(source)
        uncleared: Any = importlib.import_module("uncleared")
        uncleared.Examples, uncleared.SIGNATURE = steps.Examples, steps.SIGNATURE
        with patch.object(engine, "steps", uncleared):
            engine.program.cache_clear()
            yield "arena not cleared", bool(dependence(trainer_on("compiled"), network, LOCAL))
        engine.program.cache_clear()
    task = dict(texts())["words"]
    assert isinstance(task.structure.features, TensorStructure)
    wider = replace(task.structure.features, bound=TOKENS + 1)
    wide = replace(task, structure=replace(task.structure, features=wider))
    made = hostile_users(wide, 2, {"C": HOSTILE["first number"], "B": HOSTILE["last number"]})
    assert isinstance(made.dataset, InMemoryDataset)
    made.dataset.features[:2].clamp_(max=TOKENS - 1)
    with patch.object(OwnRows, "__torch_function__", lambda _, f, __, a=(), k=None: f(*a, **(k or {}))):
        trainer, origin = LocalTrainer(made, LOCAL, path="groups"), made.model.initial()
        rows = [trainer.updates(origin, users, 0)[-1] for users in (["C", "A"], ["C", "B", "A"])]
        yield "token flattened into the neighbour", not torch.equal(*rows)
    generator = np.random.default_rng(0)
    drawing = Own(nn.Linear(12, 4), lambda m, x: m(x * float(generator.random())))
    yield "generator shared", refused(numbers(drawing))
    together, alone = Together.train, OneByOne(network, LOCAL)
    apart = lambda e, o, g: together(e, o, g) if len(g) > 1 else alone.train(o, g)  # noqa: E731
    with patch.object(Together, "train", apart):
        yield "a group of one", bool(dependence(trainer_on("groups"), network, LOCAL))
    yield "parameter changed in place", refused(numbers(Own(nn.Linear(12, 4), clamped)))


def main() -> None:
    """Print what is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--neighbours", type=int, default=16, help="hostile users in a cohort; compiled: 16 times"
    )
    parser.add_argument("--part", default="1/1", help="I/N: every N-th model from the I-th on")
    options = parser.parse_args()
    neighbours, (first, parts) = options.neighbours, map(int, options.part.split("/"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    begun, cells, equal, models, total = time.monotonic(), Counter[str](), Counter[str](), 0, 0
    for name, task in [*convolutions(), *texts(), *owns()][first - 1 :: parts]:
        models += 1
        for path in [*(["compiled"] if is_compiled(task) else []), "groups", "one by one"]:
            for kind in KINDS:
                many = neighbours * (16 if path == "compiled" else 1)
                good = cell(task, path, kind, many)
                cells[path] += 1
                total += 2 * many
                equal[path] += good
                if not good:
                    print(f"OTHER  {name}, {path}, {kind}", flush=True)
    for path, number in cells.items():
        print(f"{path:12s} {number:5d} cells, {equal[path]:5d} equal, {number - equal[path]} others")
    print(
        f"{models} models, {sum(cells.values())} cells, {total} neighbours, {time.monotonic() - begun:.0f} s"
    )
    for fault, seen in faults() if first == 1 else ():
        print(f"fault: {fault:36s} {'seen' if seen else 'NOT SEEN'}", flush=True)


if __name__ == "__main__":
    main()
