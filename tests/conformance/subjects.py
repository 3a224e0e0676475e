"""What the conformance table computes on every path: a plain run with one value, or two,
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from support.mean_norms import MeanNorm
from support.pair_runs import RecordedPair
from support.training_cases import examples_of, task_of_kind
from torch import Tensor, nn

from fedmf.cohorts import (
    AvailableCohorts,
    BallsInBinsCohorts,
    Cohorts,
    CyclicCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
)
from fedmf.models import with_lora
from fedmf.moments import BlockEnergies, DiagonalMoment
from fedmf.optim import Adam, JmeAdam, Sgd
from fedmf.runs.run import Execution, Run
from fedmf.runs.statistics import QuantileClipping
from fedmf.statements.privacy import UserLevel
from fedmf.training import LocalSGD, Task, classification

from .paths import Path

#: Examples of each user: one owns none; few make low rank the cheaper program, more the other.
SIZES: Final = [3, 1, 4, 2, 5, 0, 3, 1, 2, 6, 3, 2]
ROUNDS = 3
COHORT = 4
SEED = 7


def _images() -> Task:
    """A convolution and a dense layer."""
    features = torch.randn(sum(SIZES) + 4, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    labels = (3 * features.mean(dim=(1, 2, 3)).mul(4).sigmoid()).long()
    dataset = examples_of(features, labels, SIZES, classes=3)
    torch.manual_seed(3)
    layers = (
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 3),
    )
    return classification(dataset, nn.Sequential(*layers))


class UnbatchableModule(nn.Module):
    """A module that torch.func cannot batch: what it computes depends on a number read off the
    examples.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        scale = 1.0 if float(features.detach().abs().max()) > -1.0 else 0.0
        return scale * self.dense(features)


def _hostile() -> Task:
    """The dense chain; two users own NaN and infinity."""
    task = _kind("classification")
    features = task.dataset.features.clone()  # type: ignore[attr-defined]
    features[1] = torch.nan
    features[4] = torch.inf
    dataset = replace(task.dataset, features=features)  # type: ignore[type-var]
    return replace(task, dataset=dataset)


def _one_by_one() -> Task:
    dataset = _kind("classification").dataset
    torch.manual_seed(3)
    return classification(dataset, UnbatchableModule())


def _adapted() -> Task:
    """A frozen dense layer below one with a low-rank adapter, which alone is trained."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return classification(_kind("classification").dataset, with_lora(module, rank=2, targets=["2"]))


def _kind(name: str) -> Task:
    return task_of_kind(name, SIZES)


#: By what computes gradients or sums with engine "auto"; the first is that of all other axes.
MODELS: Final[dict[str, Callable[[], Task]]] = {
    "dense chain": lambda: _kind("classification"),
    "convolutions": _images,
    "low-rank adapter": _adapted,
    "layers": lambda: _kind("regression"),
    "layers, positions": lambda: _kind("tagging of numbers"),
    "torch.func": lambda: _kind("multi-label"),
    "torch.func, text": lambda: _kind("next token"),
    "loop": _one_by_one,
    "hostile users": _hostile,
}
OPTIMIZERS: Final[dict[str, Any]] = {
    "sgd": Sgd(learning_rate=0.5),
    "sgd, momentum": Sgd(learning_rate=0.5, momentum=0.8),
    "adam": Adam(learning_rate=0.05, relative_eps=1.0),
    "jme-adam": JmeAdam(learning_rate=0.05, relative_eps=1.0),
    "jme-adam, coordinate": JmeAdam(learning_rate=0.05, relative_eps=1.0, blocks="coordinate"),
    "own rule, squares": "diagonal",
    "own rule, joint-clip": "joint-clip",
}
_QUANTILE: Final = QuantileClipping(quantile=0.4, learning_rate=0.7, rounds_per_update=1)
PARTS: Final[dict[str, Mapping[str, Any]]] = {
    "none": {},
    "clip norm": {"clipping": _QUANTILE},
    "clip norm, unit steps": {"clipping": replace(_QUANTILE, normalize_updates=True)},
    "mean norm": {"extra_releases": (MeanNorm(),)},
    "replace-one": {"privacy": "replace-one"},
}
COHORTS: Final[dict[str, Cohorts]] = {
    "cyclic": CyclicCohorts(ROUNDS, COHORT),
    "cyclic-poisson": CyclicPoissonCohorts(ROUNDS, COHORT, min_separation=2),
    "balls-in-bins": BallsInBinsCohorts(ROUNDS, COHORT),
    "b-min-sep": MinSeparatedCohorts(ROUNDS, COHORT, min_separation=2),
    "available": AvailableCohorts(ROUNDS, 2, min_separation=2, max_participations=2),
}
LOCAL: Final[dict[str, Mapping[str, Any]]] = {
    "plain": {},
    "epochs": {"epochs": 3},
    "momentum": {"momentum": 0.7, "epochs": 2},
    "proximal": {"proximal": 0.3, "epochs": 2},
    "micro-batches": {"micro_batch": 1, "batch_size": 4},
}
AXES: Final[dict[str, Mapping[str, Any]]] = {
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "part": PARTS,
    "cohorts": COHORTS,
    "local": LOCAL,
}


@dataclass(frozen=True)
class Subject:
    """What is computed: a value of each axis."""

    model: str = "dense chain"
    optimizer: str = "sgd"
    part: str = "none"
    cohorts: str = "cyclic"
    local: str = "plain"

    def __str__(self) -> str:
        others = [
            str(getattr(self, axis)) for axis in AXES if getattr(self, axis) != getattr(PLAIN, axis)
        ]
        return " × ".join(others) or "plain"

    def run(self, path: Path) -> Run:
        """The run of this on a path.

        Raises:
            ConfigError: values that fedmf refuses together.
        """
        task = task_of(self.model)
        values: dict[str, Any] = {
            "privacy": UserLevel(epsilon=20.0, clip_norm=0.3, noise_seed=SEED),
            "mechanism": "bisr",
            **PARTS[self.part],
        }
        if values["privacy"] == "replace-one":
            values["privacy"] = UserLevel(
                epsilon=20.0, clip_norm=0.3, noise_seed=SEED, adjacency="replace-one"
            )
        execution = Execution(
            messages=path.messages,
            workers=path.workers,
            evaluate_every=ROUNDS,
        )
        local = {"batch_size": 2, "engine": path.engine, **LOCAL[self.local]}
        optimizer = _optimizer(self.optimizer, task.model.dimension)
        return Run(
            task=task,
            cohorts=COHORTS[self.cohorts],
            server=optimizer,
            client=LocalSGD(**local),
            execution=execution,
            **values,
        )


def of_parts(run: Run, metrics: Mapping[int, Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """What the parts of a run released last, by the columns that they declare."""
    row = metrics[run.cohorts.rounds]
    return {
        name: np.array([row[name]]) for one in run.statistics for name in one.columns if name in row
    }


def _optimizer(name: str, dimension: int) -> Any:
    if name == "own rule, squares":
        return RecordedPair(DiagonalMoment(dimension))
    if name == "own rule, joint-clip":
        half = dimension // 2
        return RecordedPair(BlockEnergies([half, dimension - half]), "joint-clip")
    return OPTIMIZERS[name]


@cache
def task_of(model: str) -> Task:
    """The task of a model, built once."""
    return MODELS[model]()


PLAIN: Final = Subject()


def _one(axis: str, value: str, of: Subject = PLAIN) -> Subject:
    return replace(of, **{axis: value})


def singles() -> list[Subject]:
    """The plain run, and each value of each axis in it."""
    found = [_one(axis, value) for axis, values in AXES.items() for value in values]
    return list(dict.fromkeys(found))
