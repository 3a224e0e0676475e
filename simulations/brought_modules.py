"""Modules that users bring: frozen BatchNorm, adapters of peft, tied weights, constant buffers.

    python simulations/brought_modules.py           # each is trained, exported, loaded and compared
    python simulations/brought_modules.py --seconds # a frozen ResNet with features kept and without
    python simulations/brought_modules.py --unmoved # warnings on sixty modules of one's own

Each module is trained privately, exported, and loaded into a new module of plain torch with other
numbers, which must have equal outputs. A-B-A: the integers of user A must be the same before, after
and together with each hostile user, and another user B's data must change B's integers alone.
Modules with live statistics must be refused.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from own_modules import Own, own_modules
from torch import Tensor, nn

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.runs.released_model import write_tensors
from fedmf.training import LocalSGD, LocalTrainer, Task, classification, interference, preflight
from fedmf.training.local import chosen_path, trainer_on
from fedmf.training.unmoved import unmoved_parameters

CLASSES = 4
USERS = 12
EACH = 10
LOCAL = LocalSGD(batch_size=5, learning_rate=0.05, momentum=0.5)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut, as in torchvision's ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, of half the side with stride 2."""
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (inner + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """A ResNet of `BasicBlock`, with the names of torchvision's; ``fc`` is its head."""

    def __init__(self, widths: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        before = widths[0]
        for width in widths:
            stride = 1 if width == before else 2
            blocks += [BasicBlock(before, width, stride), BasicBlock(width, width, 1)]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.fc: nn.Module = nn.Linear(before, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, or features with an identity as head."""
        maps = self.blocks(self.bn1(self.conv1(x)).relu())
        return self.fc(maps.mean(dim=(2, 3)))


def pretrained(widths: tuple[int, ...] = (8, 16)) -> ResNet:
    """A backbone with the statistics of public images."""
    backbone = ResNet(widths, CLASSES)
    backbone(torch.randn(32, 3, 16, 16) * 2 + 1)
    return backbone


def chain() -> nn.Module:
    """A frozen backbone, and a head: its features are computed once for each user."""
    backbone = pretrained()
    width = backbone.fc.in_features
    backbone.fc = nn.Identity()
    return nn.Sequential(fedmf.freeze(backbone), nn.Linear(width, CLASSES))


def inside() -> nn.Module:
    """A frozen ResNet with a new head under its own name, as in torchvision's tutorial."""
    network = fedmf.freeze(pretrained())
    network.fc = nn.Linear(network.fc.in_features, CLASSES)
    return network


class Dense(nn.Module):
    """Two dense layers over pixels, which peft adapts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 16 * 16, 12)
        self.second = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.second(self.first(x.flatten(1)).tanh())


def adapted() -> nn.Module:
    """A model of peft, as ``get_peft_model`` returns it."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["first"], modules_to_save=["second"])
    return get_peft_model(Dense(), config)  # pyright: ignore[reportArgumentType]


class Tied(nn.Module):
    """One matrix in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(3 * 16 * 16, 8)
        self.inner = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.again(self.inner(self.inputs(x.flatten(1))).tanh()))


class Rotary(nn.Module):
    """Causal attention over lines of pixels, turned by constant tables and with a constant mask."""

    table: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(3 * 16, 8)
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)
        angles = torch.arange(16)[:, None] / 100.0 ** (torch.arange(4) / 4)
        self.register_buffer("table", torch.cat([angles.cos(), angles.sin()], dim=1))
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))

    def turned(self, x: Tensor) -> Tensor:
        """Pairs of numbers, turned by an angle of their position."""
        cos, sin = self.table.chunk(2, dim=1)
        one, two = x.chunk(2, dim=2)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=2)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        lines = self.inputs(x.transpose(1, 2).flatten(2))
        scores = self.turned(self.query(lines)) @ self.turned(self.key(lines)).transpose(1, 2)
        return self.head(((scores + self.mask).softmax(dim=2) @ lines).mean(dim=1))


class Counting(nn.Module):
    """Statistics of one's own, which a pass changes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        self.seen.mul_(0.9).add_(x.detach().mean())
        return self.head(x.flatten(1) - self.seen)


ACCEPTED: dict[str, Callable[[], nn.Module]] = {
    "frozen backbone and head": chain,
    "frozen BatchNorm inside": inside,
    "peft model": adapted,
    "weight-tied model": Tied,
    "constant buffers": Rotary,
}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "live BatchNorm": pretrained,
    "frozen, then train()": lambda: inside().train(),
    "statistics of one's own": Counting,
}


def images(users: int, each: int, side: int = 16) -> InMemoryDataset:
    """Users with random images, and a test part."""
    count = users * each
    x = torch.randn(count + 50, 3, side, side)
    y = torch.randint(CLASSES, (count + 50,))
    owned = np.arange(count).reshape(users, each)
    names = [f"user {u}" for u in range(users)]
    return InMemoryDataset(
        x[:count], y[:count], list(owned), names, x[count:], y[count:], classes=CLASSES
    )


def integers(trainer: LocalTrainer, users: list[str]) -> Tensor:
    """The exact sum of users' clipped updates."""
    total = ClippedSum(trainer.task.model.dimension, 1.0)
    trainer.add_updates(trainer.task.model.initial(), users, 0, total)
    return total.fixed_point


def others_are_unmoved(task: Task) -> bool:
    """Whether data of user 1 change user 1's integers, and those alone."""
    dataset = task.dataset
    assert isinstance(dataset, InMemoryDataset)
    features = dataset.features.clone()
    features[dataset.owned[1]] = 5.0
    other = replace(task, dataset=replace(dataset, features=features))
    names = list(dataset.user_ids)
    one = LocalTrainer(task, LOCAL)
    two = LocalTrainer(other, LOCAL)
    same_rest = torch.equal(
        integers(one, names) - integers(one, names[1:2]),
        integers(two, names) - integers(two, names[1:2]),
    )
    return same_rest and not torch.equal(integers(one, names[1:2]), integers(two, names[1:2]))


def trained_and_loaded(make: Callable[[], nn.Module], task: Task, folder: Path) -> str:
    """Train, export, load into a new module and compare outputs of the test part."""
    run = fedmf.Run(
        task=task,
        cohorts=fedmf.CyclicCohorts(rounds=4, users_per_round=6),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
        client=LOCAL,
    )
    result = fedmf.simulate(run, folder / "run")
    file = folder / "model.safetensors"
    write_tensors(file, fedmf.load_model(folder / "run"), {})
    module = make()
    module.load_state_dict(safetensors.torch.load_file(file))
    for part, trained in zip(module.modules(), task.model.module.modules(), strict=True):
        part.training = trained.training
    expected = task.model.forward(result.parameters, task.dataset.test_features)
    with torch.no_grad():
        outputs = module(task.dataset.test_features)
    moved = float((result.parameters - task.model.initial()).norm())
    difference = float((outputs - expected).abs().max())
    return f"largest difference of outputs {difference:g}; θ moved {moved:.2f}"


def show() -> None:
    """All modules, one line each."""
    for name, make in ACCEPTED.items():
        torch.manual_seed(1)
        task = classification(images(USERS, EACH), make())
        choice = chosen_path(task, LOCAL)
        fault = interference(trainer_on(choice.path), task, LOCAL, choice.path != "loop")
        alone = others_are_unmoved(task)
        with tempfile.TemporaryDirectory() as folder:
            loaded = trained_and_loaded(make, task, Path(folder))
        print(
            f"{name}: d = {task.model.dimension} of"
            f" {sum(p.numel() for p in task.model.module.parameters())}; engine {choice.path};"
            f" A-B-A {fault or 'equal'}; B's data move B alone: {alone}; {loaded}"
        )
    for name, make in REFUSED.items():
        try:
            preflight(classification(images(USERS, EACH), make()), LOCAL)
            print(f"{name}: ACCEPTED")
        except ValueError as error:
            print(f"{name}: refused: {error}")


def seconds() -> None:
    """Users in a second of ten rounds, features kept and computed in each step."""
    torch.manual_seed(1)
    backbone = pretrained((16, 32, 64))
    backbone.fc = nn.Identity()
    module = nn.Sequential(fedmf.freeze(backbone), nn.Linear(64, CLASSES))
    data = images(32, 20, side=32)
    names = list(data.user_ids)
    rounds = 10
    # `Own` hides the chain, so that its layers are computed in each step.
    for name, model in {"in each step": Own(module), "once for each user": module}.items():
        task = classification(data, model)
        trainer = LocalTrainer(task, LOCAL)
        begin = time.perf_counter()
        for t in range(rounds):
            trainer.add_updates(
                task.model.initial(), names, t, ClippedSum(task.model.dimension, 1.0)
            )
        spent = time.perf_counter() - begin
        print(
            f"features {name}: {spent:.2f} s for {rounds} rounds of {len(names)} users,"
            f" {rounds * len(names) / spent:,.0f} users/s (engine {trainer.path})"
        )


def unmoved() -> None:
    """Warnings of parameters that no user moves."""
    torch.manual_seed(0)
    tasks = own_modules()
    warned = 0
    for name, task in tasks:
        warning = unmoved_parameters(task)
        if warning:
            warned += 1
            print(f"{name}: {warning}")
    print(f"{warned} of {len(tasks)} modules")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--unmoved", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.seconds:
        seconds()
    elif arguments.unmoved:
        unmoved()
    else:
        show()
