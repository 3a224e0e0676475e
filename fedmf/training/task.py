"""A task: the data, the model, the loss and the metrics of what a run trains."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset, PublicInput
from fedmf.data.dataset import NumberedUsers
from fedmf.data.structure import ExampleStructure, Features, device_of, each, split_rows
from fedmf.models import FlatModel
from fedmf.training.losses import Loss
from fedmf.training.metrics import Metric

#: Columns that every table of metrics has.
RESERVED = ("round", "loss", "epsilon")
#: Outputs of one forward pass of an evaluation, about.
_OUTPUTS = 2**26


@dataclass(frozen=True, eq=False)
class Task:
    """Data, model, loss and metrics.

    `preflight` checks on made-up examples whether it can be trained.

    Args:
        dataset: users' examples and the central test part.
        model: the flat model; its template's parameters are θ_0.
        loss: (outputs, labels) → per-example losses, shape (batch,); no example's loss depends on
            others.
        metrics: reported in addition to the mean loss.
        structure: of one example; the test part has ``dataset.structure``.
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
        names = Counter([*RESERVED, *(metric.name for metric in self.metrics)])
        (name, times), *_ = names.most_common(1)
        if times > 1:
            raise ValueError(
                f"metrics must have different names, none of {', '.join(RESERVED)}; got {name!r}."
            )

    def to(self, device: torch.device | str) -> Self:
        """The same task with its examples, and the constants of its model, on ``device``."""
        return replace(self, dataset=self.dataset.to(device), model=self.model.to(device))

    @property
    def device(self) -> torch.device:
        """Where the examples are, and users are trained."""
        return device_of(self.dataset.test_features)

    @torch.no_grad()
    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """Mean loss, called ``loss``, and the metrics of θ on the central test part; empty if that
        is.
        """
        examples = len(self.dataset.test_labels)
        if not examples:
            return {}
        sums = self.sums(parameters, self.dataset.test_features, self.dataset.test_labels)
        return self.values(sums, examples)

    @torch.no_grad()
    def sums(
        self, parameters: Tensor, features: Features, labels: Tensor
    ) -> dict[str, tuple[float, ...]]:
        """Sums over examples of the loss and of each metric's terms, by name; a few examples at a
        time.

        Args:
            parameters: θ, shape (d,).
            features: of the examples, at least one.
            labels: likewise.
        """
        # Copies: a module may write into its parameters.
        theta = parameters.to(labels.device, copy=True)
        rows = self._rows_of_a_pass
        total: dict[str, NDArray[np.float64]] = {}
        for part, targets in zip(split_rows(features, rows), split_rows(labels, rows), strict=True):
            outputs = self._evaluated.forward(
                theta, each(torch.clone, part)
            )  # a module may write into them
            terms = {"loss": (float(self.loss(outputs, targets).to(torch.float64).sum()),)}
            terms |= {metric.name: metric.sums(outputs, targets) for metric in self.metrics}
            total = {name: total.get(name, 0.0) + np.asarray(term) for name, term in terms.items()}
        return {name: tuple(sums.tolist()) for name, sums in total.items()}

    @cached_property
    def _evaluated(self) -> FlatModel:
        """The model without what it does in training alone, such as dropout."""
        model = self.model.copied()
        model.module.eval()
        return model

    @cached_property
    def _rows_of_a_pass(self) -> int:
        """Examples in one forward pass: at most 1024, and fewer where each has many outputs."""
        features, _ = self.structure.sample(torch.Generator().manual_seed(0), (1,))
        features = each(lambda values: values.to(self.device), features)
        with torch.no_grad():
            outputs = self._evaluated.forward(self.model.initial().to(self.device), features)
        return max(1, min(1024, _OUTPUTS // max(1, outputs.numel())))

    def values(self, sums: Mapping[str, tuple[float, ...]], examples: int) -> dict[str, float]:
        """Mean loss and metrics from sums over so many examples, by name."""
        metrics = {
            metric.name: metric.value(sums[metric.name], examples) for metric in self.metrics
        }
        return {"loss": sums["loss"][0] / examples, **metrics}

    def constant_inputs(self) -> tuple[PublicInput, ...]:
        """What every process of a run must find again, taken as public: users in their order, by
        which cohorts are drawn, and what the model has in addition to the trained parameters.
        """
        ids = self.dataset.user_ids
        constants = self.model.constants
        order = "numbered" if isinstance(ids, NumberedUsers) else _digest(list(ids))
        known = (PublicInput("order of users", f"{len(ids)} ids, {order}", "the data set"),)
        if not constants:
            return known
        numbers = sum(tensor.numel() for tensor in constants.values())
        value = (
            f"{numbers} numbers in {len(constants)} tensors, SHA-256"
            f" {self.model.constants_digest()}"
        )
        source = "the model, which must not be made from private rows"
        return (*known, PublicInput("frozen parameters and buffers", value, source))

    def identity(self) -> dict[str, str]:
        """What makes a task this one, the same in every process: parts in words, long ones by
        digest.

        They are structure, users' ids in their order, names, shapes and initial values of the
        parameters, frozen parameters and buffers, and qualified names of loss and metrics; neither
        examples nor the code behind the names.
        """
        model = self.model
        ids = list(self.dataset.user_ids)
        initial = hashlib.sha256(model.initial().cpu().numpy().astype("<f4").tobytes()).hexdigest()
        arrays = f"{len(model.arrays)} arrays, {_digest([model.arrays, initial])}"
        metrics = [
            (one.name, qualified_name(one.terms), qualified_name(one.value)) for one in self.metrics
        ]
        return {
            "features": str(self.structure.features),
            "frozen": model.constants_digest(),
            "labels": str(self.structure.labels),
            "loss": qualified_name(self.loss),
            "metrics": "; ".join(map(", ".join, metrics)),
            "parameters": f"{model.dimension} in {arrays}",
            "users": f"{len(ids)} with ids of {_digest(ids)}",
        }


def _digest(value: object) -> str:
    """80 bits of SHA-256 of its JSON, in hexadecimal."""
    return f"digest {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:20]}"


def qualified_name(function: Callable[..., Any]) -> str:
    """Module and name of a function; of what a partial calls, or of an object's class."""
    if isinstance(function, partial):
        return qualified_name(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
