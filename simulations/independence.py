"""Does any user's data, or its place in a group, move another user's integers? A-B-A; planted
faults.

    python simulations/independence.py places [--part 1/2] [--batches 1 2 ...] [--modules NAME ...]
    python simulations/independence.py hostile [--part 1/2] [--neighbors 16]

"places" trains sixty modules of one's own with batch sizes 1 to 16, as engine "auto" does. Where
users are trained in groups, A is at every place of a group, among users with other numbers of rows,
and alone before and after. With --unchecked groups are taken whatever the checks say; with --awake
torch multiplies before fedmf is imported, so that MKL's reproducible mode cannot be had.

"hostile" trains A, for each model, path and kind of hostile user, alone, after, last and first
among so many hostile users. A cell is equal if A's integers are the same each time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

if "--awake" in sys.argv:
    os.environ.pop("MKL_CBWR", None)
    torch.ones(9, 9) @ torch.ones(9, 9)

from own_modules import TOKENS, Own, data, of_numbers, own_modules, owns, texts

from fedmf.data import InMemoryDataset
from fedmf.data.structure import TensorStructure
from fedmf.errors import ConfigError
from fedmf.noise.jit import compiled
from fedmf.training import (
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    interference,
    preflight,
)
from fedmf.training.agreement import uneven_products
from fedmf.training.compiled import NotAChain, engine, program_of, steps
from fedmf.training.engines import LoopEngine, OwnRows, VmapEngine
from fedmf.training.interference import HOSTILE, clipped_integers, hostile_users
from fedmf.training.local import trainer_on

LOCAL = LocalSGD(batch_size=2, learning_rate=0.05, momentum=0.5)


def outside(values: Tensor, structure: TensorStructure) -> None:
    """Tokens and labels V and −1."""
    if structure.bound is not None:
        values.view(-1)[::2] = structure.bound
        values.view(-1)[1::2] = -1


KINDS = {**HOSTILE, "outside": (outside, 1)}


def images(*layers: nn.Module, channels: int = 1, side: int = 10) -> Task:
    """A chain of layers with a dense head."""
    features = torch.randn(4, channels, side, side)
    chain = nn.Sequential(*layers, nn.Flatten())
    return classification(
        data(features, torch.arange(4)), chain.append(nn.Linear(chain(features).shape[1], 4))
    )


#: Channels of inputs and of two convolutions.
CHANNELS = (
    (1, 1, 1),
    (1, 6, 16),
    (1, 10, 20),
    (1, 8, 16),
    (3, 5, 7),
    (2, 16, 3),
    (1, 17, 33),
    (1, 33, 2),
)
WIDER = (3, 31, 15), (4, 15, 32), (16, 9, 12), (17, 3, 18)


def convolutions() -> Iterator[tuple[str, Task]]:
    """Channels 1–33, strides, pools, groups."""
    for c, a, b in (*CHANNELS, *WIDER):
        layers = (
            nn.Conv2d(c, a, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(a, b, 3),
            nn.ReLU(),
        )
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
    yield (
        "depthwise",
        images(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 9, 1), nn.GELU(), channels=6),
    )


def cell(task: Task, path: Any, kind: str, neighbors: int) -> bool:
    """Whether A's integers are the same before, after, last and first among hostile users of a
    kind.
    """
    made = hostile_users(task, 3, {f"{kind} {i}": KINDS[kind] for i in range(neighbors)})
    trainer = LocalTrainer(made, LOCAL, path=path, threads=1)
    alone, failed = clipped_integers(trainer, made, ["A"])
    others = list(made.dataset.user_ids[1:])
    hostile, _ = clipped_integers(trainer, made, others)
    again = [clipped_integers(trainer, made, ["A"])[0]]
    for users in ([*others, "A"], ["A", *others]):
        together, _ = clipped_integers(trainer, made, users)
        again.append(together - hostile)
    return bool(alone.any()) and not failed and all(torch.equal(alone, other) for other in again)


def is_compiled(task: Task) -> bool:
    """Whether compiled steps train a task."""
    with suppress(NotAChain):
        return program_of(task, LOCAL) is not None
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
        uncleared.Examples = steps.Examples
        training = compiled(steps.signature)(uncleared.train_on_images.py_func)
        uncleared.train_on_images = training
        with patch.object(engine, "steps", uncleared):
            yield "arena not cleared", bool(interference(trainer_on("compiled"), network, LOCAL))
    task = dict(texts())["words"]
    assert isinstance(task.structure.features, TensorStructure)
    wider = replace(task.structure.features, bound=TOKENS + 1)
    wide = replace(task, structure=replace(task.structure, features=wider))
    made = hostile_users(wide, 2, {"C": HOSTILE["first number"], "B": HOSTILE["last number"]})
    assert isinstance(made.dataset, InMemoryDataset)
    made.dataset.features[:2].clamp_(max=TOKENS - 1)
    with patch.object(
        OwnRows, "__torch_function__", lambda _, f, __, a=(), k=None: f(*a, **(k or {}))
    ):
        trainer = LocalTrainer(made, LOCAL, path="vmap")
        origin = made.model.initial()
        rows = [trainer.updates(origin, users, 0)[-1] for users in (["C", "A"], ["C", "B", "A"])]
        yield "token flattened into the neighbor", not torch.equal(*rows)
    generator = np.random.default_rng(0)
    drawing = Own(nn.Linear(12, 4), lambda m, x: m(x * float(generator.random())))
    yield "generator shared", refused(of_numbers(drawing))
    together = VmapEngine.train
    alone = LoopEngine(network, LOCAL)
    apart = lambda e, o, g: together(e, o, g) if len(g) > 1 else alone.train(o, g)  # noqa: E731
    with patch.object(VmapEngine, "train", apart):
        yield "a group of one", bool(interference(trainer_on("vmap"), network, LOCAL))
    yield "parameter changed in place", refused(of_numbers(Own(nn.Linear(12, 4), clamped)))


def hostile(neighbors: int, first: int, parts: int) -> None:
    """Print for each path how many cells are equal, and which faults are seen."""
    cells = Counter[str]()
    equal = Counter[str]()
    models = 0
    total = 0
    for name, task in [*convolutions(), *texts(), *owns()][first - 1 :: parts]:
        models += 1
        for path in [*(["compiled"] if is_compiled(task) else []), "vmap", "loop"]:
            for kind in KINDS:
                many = neighbors * (16 if path == "compiled" else 1)
                good = cell(task, path, kind, many)
                cells[path] += 1
                total += 2 * many
                equal[path] += good
                if not good:
                    print(f"OTHER  {name}, {path}, {kind}", flush=True)
    for path, number in cells.items():
        print(
            f"{path:12s} {number:5d} cells, {equal[path]:5d} equal, {number - equal[path]} others"
        )
    print(f"{models} models, {sum(cells.values())} cells, {total} neighbors")
    for fault, seen in faults() if first == 1 else ():
        print(f"fault: {fault:36s} {'seen' if seen else 'NOT SEEN'}", flush=True)


def users_around(task: Task, batch: int) -> Task:
    """The task with A, who takes two steps, and users who go before it in a group and after it."""
    size = VmapEngine(task, replace(LOCAL, batch_size=batch)).size
    rows = [batch + (batch + 1) // 2]
    rows += [3 * batch if user % 3 else 2 * batch for user in range(size)]
    rows += [batch if user % 3 else rows[0] for user in range(size)]
    names = [
        "A",
        *(f"before {user}" for user in range(size)),
        *(f"after {user}" for user in range(size)),
    ]
    features, labels = task.structure.sample(torch.Generator().manual_seed(1), (sum(rows),))
    owned = np.split(np.arange(sum(rows)), np.cumsum(rows)[:-1])
    dataset = InMemoryDataset(features, labels, owned, names, features[:1], labels[:1])
    return replace(task, dataset=dataset)


def places(task: Task, batch: int, unchecked: bool) -> tuple[str, list[int]]:
    """How users are trained, and the places of a group at which A's update or integers are
    others.
    """
    local = replace(LOCAL, batch_size=batch)
    made = users_around(task, batch)
    trainer = LocalTrainer(made, local, path="vmap" if unchecked else None, threads=1)
    if trainer.path != "vmap":
        return trainer.path, []
    origin = made.model.initial()
    size = (made.dataset.users - 1) // 2
    (alone,) = trainer.updates(origin, ["A"], 0)
    before, _ = clipped_integers(trainer, made, ["A"])
    others = list[int]()
    for place in range(size):
        ahead = [f"before {user}" for user in range(place)]
        behind = [f"after {user}" for user in range(size - 1 - place)]
        amid = trainer.updates(
            origin, [*behind, *ahead, "A"] if place % 2 else [*ahead, "A", *behind], 0
        )
        if not torch.equal(amid[-1 if place % 2 else place], alone):
            others.append(place)
    after, _ = clipped_integers(trainer, made, ["A"])
    together, _ = clipped_integers(trainer, made, ["before 0", "before 1", "before 2", "A"])
    without, _ = clipped_integers(trainer, made, ["before 0", "before 1", "before 2"])
    if not (alone.any() and torch.equal(before, after) and torch.equal(together - without, before)):
        others.append(-1)
    return trainer.path, others


def all_places(options: argparse.Namespace, first: int, parts: int) -> None:
    """Print at which places A's bits are others, and which modules are not trained in groups."""
    print(f"products: {uneven_products() or 'the same bits at every place'}")
    paths = Counter[str]()
    cells = 0
    wrong = 0
    elsewhere = dict[str, list[int]]()
    for name, task in own_modules()[first - 1 :: parts]:
        if options.modules and name not in options.modules:
            continue
        for batch in options.batches:
            path, others = places(task, batch, options.unchecked)
            paths[path] += 1
            cells += 1
            wrong += bool(others)
            if path != "vmap":
                elsewhere.setdefault(f"{name} ({path})", []).append(batch)
            if others:
                print(f"OTHER  {name}, batches of {batch}: places {others}", flush=True)
    for name, batches in elsewhere.items():
        print(f"not in groups: {name} with batches of {batches}")
    print(f"{cells} cells, {wrong} with other bits; {dict(paths)}")


def main() -> None:
    """Print what is equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("places", "hostile"))
    parser.add_argument("--part", default="1/1", help="I/N: every N-th model from the I-th on")
    parser.add_argument(
        "--neighbors", type=int, default=16, help="hostile users in a cohort; compiled: 16 times"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=range(1, 17), help="batch sizes")
    parser.add_argument("--modules", nargs="+", help="names of modules; all by default")
    parser.add_argument(
        "--unchecked", action="store_true", help="take groups whatever the checks say"
    )
    parser.add_argument("--awake", action="store_true", help="multiply before fedmf is imported")
    options = parser.parse_args()
    first, parts = map(int, options.part.split("/"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    begun = time.monotonic()
    if options.what == "places":
        all_places(options, first, parts)
    else:
        hostile(options.neighbors, first, parts)
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
