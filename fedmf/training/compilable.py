"""What compiled programs of training ask of a task and of local SGD before they look at the model."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch

from fedmf.data import TensorStructure
from fedmf.training.blocks import Rule
from fedmf.training.gradients import layers_of
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.task import Task

#: Fields of `LocalSGD` that compiled programs do as said: `rule_of`, and the steps of a group.
DONE: Final = frozenset(
    {
        *("epochs", "batch_size", "learning_rate", "momentum", "proximal"),
        *("engine", "micro_batch", "precision", "seed"),
    }
)


def rule_of(local: LocalSGD) -> Rule:
    """How a step goes on from a gradient."""
    return Rule(local.learning_rate, local.momentum, local.proximal)


def compilable(task: Task, local: LocalSGD) -> bool:
    """Whether compiled programs compute what is asked: cross-entropy of numbers to classes in float32 on a
    processor, by a model without hooks that uses no parameter twice, and local SGD of which they know every
    field that is not at its default."""
    features, labels = task.structure.features, task.structure.labels
    numbers = isinstance(features, TensorStructure) and features.dtype == torch.float32
    classes = labels.dtype == torch.int64 and not labels.shape
    wished = local.engine == "auto" and local.precision == "float32" and task.device.type == "cpu"
    known = all(
        getattr(local, field.name) == field.default
        for field in dataclasses.fields(local)
        if field.name not in DONE
    )
    fits = wished and known and numbers and classes and task.loss is cross_entropy
    return fits and layers_of(task.model, task.device) is not None
