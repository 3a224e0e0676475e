"""A task: the data, the model, the loss and the metrics of a run.

It evaluates models on the central test part, and names what a run takes as public and what must be
the same in every process of a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import Dataset, PublicInput
from fedmf.data.dataset import NumberedUsers
from fedmf.data.structure import ExampleStructure, Features, each, split_rows
from fedmf.models import FlatModel
from fedmf.models.frozen import frozen_layers
from fedmf.training.frozen_features import FrozenFeatures, structure_of_features
from fedmf.training.losses import Loss
from fedmf.training.metrics import Metric

#: Columns of every table of metrics.
RESERVED = ("round", "loss", "epsilon")
#: Approximate number of outputs of one forward pass of an evaluation.
_OUTPUTS = 2**26


@dataclass(frozen=True, eq=False)
class Task:
    """Data, model, loss and metrics.

    `preflight` tries on made-up examples whether it can be trained.

    Args:
        dataset: users' examples and the central test part.
        model: the flat model; its template's parameters are θ_0.
        loss: (outputs, labels) → per-example losses, shape (batch,); no example's loss depends on
            others.
        metrics: reported in addition to the mean loss.
        structure: how one example looks; the test part has ``dataset.structure``.
        seed: public seed of cohorts that are not secret, and of the order in which users go through
            their examples.

    Raises:
        ValueError: metrics of one name, or named like another column of the table of metrics.
    """

    dataset: Dataset
    model: FlatModel
    loss: Loss
    metrics: tuple[Metric, ...]
    structure: ExampleStructure
    seed: int = 0

    def __post_init__(self) -> None:
        taken: set[str] = {*RESERVED}
        for metric in self.metrics:
            if metric.name in taken:
                raise ValueError(
                    f"metrics must have different names, none of {', '.join(RESERVED)};"
                    f" got {metric.name!r}."
                )
            taken.add(metric.name)

    def to(self, device: torch.device | str) -> Self:
        """Move the examples, and the constants of the model, to a device."""
        return replace(self, dataset=self.dataset.to(device), model=self.model.to(device))

    @property
    def device(self) -> torch.device:
        """The device of the examples, on which users are trained."""
        return self.dataset.test_labels.device

    @cached_property
    def after_frozen_layers(self) -> Task:
        """The task of what follows on a model's frozen first layers; itself without such layers.

        Its examples are the features that these layers compute, once for each user. It has the same
        trained parameters.
        """
        module = self.model.module
        count = frozen_layers(module)
        if not count:
            return self
        assert isinstance(module, nn.Sequential)
        layers = module[:count]
        features = structure_of_features(layers, self.structure)
        if features is None:
            return self
        return replace(
            self,
            dataset=FrozenFeatures(self.dataset, self.structure, layers),
            model=FlatModel(module[count:]),
            structure=replace(self.structure, features=features),
        )

    @torch.no_grad()
    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """The mean ``loss`` and the metrics of θ on the central test part; empty without one."""
        examples = len(self.dataset.test_labels)
        if not examples:
            return {}
        rest = self.after_frozen_layers
        sums = rest.sums(parameters, rest.dataset.test_features, rest.dataset.test_labels)
        return self.values(sums, examples)

    @torch.no_grad()
    def outputs(self, parameters: Tensor, features: Features) -> Tensor:
        """The outputs of θ in evaluation mode for at least one example, on the CPU."""
        theta = parameters.to(self.device, copy=True)
        parts: list[Tensor] = []
        for part in split_rows(features, self._rows_of_a_pass):
            parts.append(self._evaluated.forward(theta, each(torch.clone, part)).cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def sums(
        self, parameters: Tensor, features: Features, labels: Tensor
    ) -> dict[str, tuple[float, ...]]:
        """Sums over examples of the loss and of each metric's terms, by name.

        Args:
            parameters: θ, shape (d,).
            features: those of at least one example; a few examples are evaluated at a time.
            labels: those of the same examples.
        """
        # A module may write into its parameters and features, so it gets copies.
        theta = parameters.to(labels.device, copy=True)
        rows = self._rows_of_a_pass
        parts = zip(split_rows(features, rows), split_rows(labels, rows), strict=True)
        total: dict[str, NDArray[np.float64]] = {}
        for part_features, part_labels in parts:
            outputs = self._evaluated.forward(theta, each(torch.clone, part_features))
            losses = self.loss(outputs, part_labels).to(torch.float64)
            _add(total, "loss", [float(losses.sum())])
            for metric in self.metrics:
                _add(total, metric.name, metric.sums(outputs, part_labels))
        return {name: tuple(sums.tolist()) for name, sums in total.items()}

    @cached_property
    def _evaluated(self) -> FlatModel:
        """The model in evaluation mode, for example without dropout."""
        model = self.model.copied()
        model.module.eval()
        return model

    @cached_property
    def _rows_of_a_pass(self) -> int:
        """Examples in a forward pass: at most 1024, and fewer where each has many outputs."""
        features, _ = self.structure.sample(torch.Generator().manual_seed(0), (1,))
        features = each(lambda values: values.to(self.device), features)
        with torch.no_grad():
            outputs = self._evaluated.forward(self.model.initial().to(self.device), features)
        return max(1, min(1024, _OUTPUTS // max(1, outputs.numel())))

    def values(self, sums: Mapping[str, tuple[float, ...]], examples: int) -> dict[str, float]:
        """Mean loss and metrics, by name, from sums over ``examples`` examples."""
        values = {"loss": sums["loss"][0] / examples}
        for metric in self.metrics:
            values[metric.name] = metric.value(sums[metric.name], examples)
        return values

    def constant_inputs(self) -> tuple[PublicInput, ...]:
        """Inputs that are taken as public and must be the same in every process of a run.

        They are the users in their order, by which cohorts are drawn, and the parts of the model
        that are not trained.
        """
        ids = self.dataset.user_ids
        order = "numbered"
        if not isinstance(ids, NumberedUsers):
            order = _digest(list(ids))
        users = PublicInput("order of users", f"{len(ids)} ids, {order}", "the data set")
        constants = self.model.constants
        if not constants:
            return (users,)
        numbers = sum(tensor.numel() for tensor in constants.values())
        frozen = PublicInput(
            "frozen parameters and buffers",
            f"{numbers} numbers in {len(constants)} tensors, SHA-256"
            f" {self.model.constants_digest()}",
            "the model",
        )
        return (users, frozen)

    def identity(self) -> dict[str, str]:
        """The parts that identify a task in every process, as strings; long ones by digest.

        They are structure, users' ids in their order, names, shapes and initial values of the
        parameters, frozen parameters and buffers, and qualified names of loss and metrics; neither
        examples nor the code behind the names.
        """
        model = self.model
        ids = list(self.dataset.user_ids)
        initial = model.initial().cpu().numpy().astype("<f4")
        initial_digest = hashlib.sha256(initial.tobytes()).hexdigest()
        arrays = [(name, tuple(p.shape)) for name, p in model.trained.items()]
        digest = _digest([arrays, initial_digest])
        metrics: list[str] = []
        for metric in self.metrics:
            terms = qualified_name(metric.terms)
            value = qualified_name(metric.value)
            metrics.append(f"{metric.name}, {terms}, {value}")
        return {
            "features": str(self.structure.features),
            "frozen": model.constants_digest(),
            "labels": str(self.structure.labels),
            "loss": qualified_name(self.loss),
            "metrics": "; ".join(metrics),
            "parameters": f"{model.dimension} in {len(arrays)} arrays, {digest}",
            "users": f"{len(ids)} with ids of {_digest(ids)}",
        }


def _add(total: dict[str, NDArray[np.float64]], name: str, terms: Sequence[float]) -> None:
    total[name] = total.get(name, 0.0) + np.asarray(terms)


def _digest(value: object) -> str:
    """The first 80 bits of SHA-256 of a value's JSON, in hexadecimal."""
    return f"digest {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:20]}"


def qualified_name(function: Callable[..., Any]) -> str:
    """Module and name of a function, of the function that a partial calls, or of a class."""
    if isinstance(function, partial):
        return qualified_name(function.func)
    if not hasattr(function, "__qualname__"):
        return qualified_name(type(function))
    return f"{function.__module__}.{function.__qualname__}"
