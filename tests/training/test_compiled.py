"""Compiled steps have the updates of automatic differentiation in 64 bits."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.training import (
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    multi_label,
    regression,
)
from fedmf.training.agreement import disagreement
from fedmf.training.batches import user_orders
from fedmf.training.compiled import CompiledEngine, NotAChain, program_of, steps
from fedmf.training.losses import PADDING

SIZES = (5, 1, 8, 3)
LOCAL = LocalSGD(2, 4, 0.1, momentum=0.5, proximal=0.3)
# float32 against 64 bits, some thousand additions deep.
TOLERANCE = 1e-4


class Own(nn.Module):
    """A network with a forward of its own, of modules, functions and methods."""

    def __init__(self, end: Callable[[Tensor], Tensor] = lambda x: F.log_softmax(x, dim=1)) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, 3, padding=1)
        self.second = nn.Conv2d(7, 5, (3, 2))
        self.dense = nn.Linear(5, 6)
        self.head = nn.Linear(6, 4)
        self.dropout = nn.Dropout(0)
        self.end = end

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(images)), 2)
        x = torch.tanh(self.second(x))
        x = F.avg_pool2d(x, 2).contiguous()
        x = self.dropout(x).view(x.size(0), -1)
        return self.end(self.head(self.dense(x).relu_()))


def layers() -> list[nn.Module]:
    """The layers of `Own`, to be put into a Sequential."""
    own = Own()
    images = (own.first, nn.ReLU(), nn.MaxPool2d(2), own.second, nn.Tanh(), nn.AvgPool2d(2))
    return [*images, nn.Identity(), nn.Flatten(), own.dense, nn.ReLU(), own.head]


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


def flat(*inner: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *inner)


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: flat(nn.Linear(216, 4, bias=False)),
    "dense": lambda: flat(
        nn.Linear(216, 33), nn.Tanh(), nn.Linear(33, 17), nn.ReLU(), nn.Linear(17, 4)
    ),
    "Sequential": lambda: nn.Sequential(*layers()),
    "own module": Own,
    "strides": lambda: nn.Sequential(
        *(nn.Conv2d(3, 17, (2, 3), stride=(2, 1), padding=(0, 2), bias=False), nn.ReLU()),
        *(nn.Conv2d(17, 20, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4)),
    ),
    "wide images": lambda: nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(16, 9, 3, padding=1)),
        *(nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4)),
    ),
    "frozen below": lambda: nn.Sequential(
        *(frozen(nn.Conv2d(3, 6, 3)), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(54, 9), nn.ReLU(), frozen(nn.Linear(9, 9)), nn.ReLU(), nn.Linear(9, 4)),
    ),
    "looked at as images": lambda: flat(
        nn.Unflatten(1, (3, 8, 9)), *layers()[:-3], nn.Linear(5, 4)
    ),
}


TASKS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "regression": regression,
    "multi-label": multi_label,
}


def task_of(
    module: nn.Module, kind: str = "classification", shape: tuple[int, ...] = (3, 9, 8)
) -> Task:
    count = sum(SIZES)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(count, *shape, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    labels[-1] = 3
    owned = tuple(np.split(np.arange(count), np.cumsum(SIZES)[:-1]))
    names = tuple(f"u{u}" for u in range(len(SIZES)))
    if kind != "classification":
        labels = torch.rand(count, 4, generator=generator).round()
    return TASKS[kind](InMemoryDataset(features, labels, owned, names, features, labels), module)


def module_of(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CHAINS[name]()


def exact_update(task: Task, user: int, local: LocalSGD) -> Tensor:
    """The update of a user in 64 bits, by the formula."""
    module = copy.deepcopy(task.model.module).double()
    trained = [p for p in module.parameters() if p.requires_grad]
    origin = [p.detach().clone() for p in trained]
    velocity = [torch.zeros_like(p) for p in trained]
    features, labels = task.dataset.examples(np.array([user]))
    assert isinstance(features, Tensor)
    for order in torch.from_numpy(user_orders(task.seed, 2, f"u{user}", len(labels), local.epochs)):
        for rows in order.split(local.batch_size):
            target = labels[rows]
            if target.is_floating_point():
                target = target.double()
            loss = task.loss(module(features[rows].double()), target).mean()
            for v, p, start, slope in zip(
                velocity, trained, origin, torch.autograd.grad(loss, trained), strict=True
            ):
                v.mul_(local.momentum).add_(slope + local.proximal * (p.detach() - start))
                p.data.sub_(local.learning_rate * v)
    flat = nn.utils.parameters_to_vector
    return flat(trained).detach() - flat(origin)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_updates_are_those_of_automatic_differentiation_in_64_bits(name: str, plain: bool) -> None:
    local = LOCAL
    if plain:
        local = replace(LOCAL, momentum=0.0, proximal=0.0)
    check_exact(task_of(module_of(name)), local)


@pytest.mark.parametrize("kind", ["regression", "multi-label"])
def test_other_losses(kind: str) -> None:
    check_exact(task_of(module_of("dense"), kind), LOCAL)


def check_exact(task: Task, local: LocalSGD) -> None:
    trainer = LocalTrainer(task, local)
    assert trainer.path == "compiled"
    origin = task.model.initial()
    users = task.dataset.user_ids
    updates = trainer.updates(origin, users, 2)
    for user, update in enumerate(updates):
        exact = exact_update(task, user, local)
        assert exact.norm() > 1e-3
        assert (update - exact).norm() <= TOLERANCE * exact.norm()
    rows = ClippedSum(origin.numel(), 0.1)
    added = ClippedSum(origin.numel(), 0.1)
    assert rows.add_updates(updates).all()
    assert not trainer.add_updates(origin, users, 2, added)
    assert torch.equal(rows.fixed_point, added.fixed_point)
    assert rows.users == added.users


def test_a_module_of_ones_own_has_the_bits_of_a_sequential() -> None:
    updates: list[Tensor] = []
    for name in ("Sequential", "own module"):
        task = task_of(module_of(name))
        trainer = LocalTrainer(task, LOCAL)
        updates.append(trainer.updates(task.model.initial(), task.dataset.user_ids, 2))
    assert torch.equal(*updates)


def test_padding_has_no_slopes_and_a_label_beyond_the_classes_fails_alone() -> None:
    task = task_of(module_of("dense"))
    dataset = task.dataset
    assert isinstance(dataset, InMemoryDataset)
    dataset.labels[dataset.owned[2][:3]] = PADDING
    check_exact(task, LOCAL)
    few = task_of(flat(nn.Linear(216, 3)))  # label 3 is declared
    total = ClippedSum(few.model.dimension, 1.0)
    users = list(dataset.user_ids)
    assert isinstance(few.dataset, InMemoryDataset)
    beyond: list[str] = []
    for user, rows in zip(users, few.dataset.owned, strict=True):
        if 3 in few.dataset.labels[rows]:
            beyond.append(user)
    failures = LocalTrainer(few, LOCAL).add_updates(few.model.initial(), users, 2, total)
    assert [failure.user for failure in failures] == beyond
    assert 0 < len(beyond) < len(SIZES)


class Branching(Own):
    def forward(self, images: Tensor) -> Tensor:
        if images.sum() > 0:
            return super().forward(images)
        return super().forward(-images)


class Twice(nn.Module):
    def __init__(self, step: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(216, 216)
        self.head = nn.Linear(216, 4)
        self.step = step

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.step(self.inner, images.flatten(1)))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "branches": (Branching, "sum is not a layer"),
    "a residual": (lambda: Twice(lambda m, x: x + m(x)), "add is not a layer"),
    "a layer used twice": (lambda: Twice(lambda m, x: m(m(x))), "shared by two layers"),
    "a detached layer": (lambda: Twice(lambda m, x: m(x).detach()), "detach is not a layer"),
    "no gradient": (lambda: Twice(lambda m, x: torch.no_grad()(m)(x)), "hidden from gradients"),
    "examples mixed": (
        lambda: Twice(lambda m, x: m(x).reshape(216, -1).reshape(-1, 216)),
        "mixes examples",
    ),
    "a scale": (lambda: Own(lambda x: 2 * x), "mul is not a layer"),
    "dropout": (
        lambda: flat(nn.Linear(216, 5), nn.Dropout(0.5), nn.Linear(5, 4)),
        "draws random numbers",
    ),
    "groups": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), *layers()[-5:]), "groups"),
    "ReLU at the end": (lambda: flat(nn.Linear(216, 4), nn.ReLU()), "the last layer is not dense"),
    "a row of an image": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(216, 4)),
        "not compiled",
    ),
    "padded pooling": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(60, 4)),
        "padded",
    ),
    "windows of three": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(36, 4)),
        "two by two",
    ),
    "outputs of another layer": (lambda: Own(lambda x: x.sum(1)), "sum is not a layer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_chain_is_left_to_torch(name: str) -> None:
    """A Linear before a Flatten read foreign memory (FEDMF-2026-5)."""
    make, reason = REFUSED[name]
    with pytest.raises(NotAChain, match=reason):
        program_of(task_of(make()), LOCAL)


def test_steps_that_disagree_with_automatic_differentiation_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of(module_of("Sequential"))
    assert disagreement(CompiledEngine, task, LOCAL) == ""
    other = program_of(task, LOCAL)
    other[0].stages["step_x"][0] += 1
    other[0].stages["pixels"][0] -= 4
    monkeypatch.setattr("fedmf.training.compiled.engine.program_of", lambda *_: other)
    why = "updates differ from those of automatic differentiation"
    assert disagreement(CompiledEngine, task, LOCAL) == why


FAULTY = """
import importlib, sys
sys.path[:0] = sys.argv[1:]
import numpy as np, torch
from torch import nn
from training.test_compiled import LOCAL, task_of
from fedmf.noise.jit import compiled
from fedmf.training import interference
from fedmf.training.compiled import engine
from fedmf.training.local import trainer_on
for name in ("cleared", "uncleared"):
    steps = importlib.import_module(name)
    def train(p, *rest, right=steps.train_on_images):
        return right(p._replace(stages=p.stages.view(np.recarray)), *rest)
    steps.train_on_images = compiled(steps.signature)(train)
    engine.steps = steps
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 2, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)
    module = nn.Sequential(*layers)
    print(name, interference(trainer_on("compiled"), task_of(module, shape=(1, 3, 3)), LOCAL))
"""


def test_an_arena_that_is_not_cleared_is_seen(tmp_path: Path) -> None:
    """In Python, without compiling another program."""
    source = Path(steps.__file__).read_text()
    clear = "    clear(arena, 0, arena.size)\n"
    assert source.count(clear) == 1
    (tmp_path / "cleared.py").write_text(source)
    (tmp_path / "uncleared.py").write_text(source.replace(clear, ""))
    command = [sys.executable, "-c", FAULTY, str(tmp_path), str(Path(__file__).parents[1])]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    cleared, uncleared = done.stdout.splitlines()
    assert cleared.strip() == "cleared"
    assert uncleared.startswith("uncleared ")
    assert uncleared.strip() != "uncleared"
