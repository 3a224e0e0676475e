"""Common kinds of tasks: each has a loss, metrics, and a structure of its labels."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fedmf.data import Dataset
from fedmf.data.structure import TensorStructure
from fedmf.models import FlatModel
from fedmf.training.losses import (
    Loss,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
    token_cross_entropy,
)
from fedmf.training.metrics import ACCURACY, AUC, F1, MAE, PERPLEXITY, RMSE, TOKEN_ACCURACY
from fedmf.training.task import Task

Model = nn.Module | FlatModel


def classification(dataset: Dataset, model: Model, loss: Loss = cross_entropy) -> Task:
    """One class number for each example.

    Outputs are logits, shape (batch, classes).

    Args:
        dataset: labels have shape (examples,).
        model: from features to logits.
        loss: (outputs, labels) → per-example losses.
    """
    return Task(dataset, _flat(model), loss, (ACCURACY,), dataset.structure)


def tagging(dataset: Dataset, model: Model) -> Task:
    """A class number for each position of an example.

    Outputs are logits, shape (batch, …, classes).

    Args:
        dataset: labels have shape (examples, …); −100 is padding. Without ``classes``, the largest
            label of the test part is the last class.
        model: from features to logits.
    """
    structure = dataset.structure
    if not dataset.classes:  # its labels are no tokens
        structure = replace(structure, labels=TensorStructure.of(dataset.test_labels))
    return Task(dataset, _flat(model), token_cross_entropy, (TOKEN_ACCURACY,), structure)


def next_token(dataset: Dataset, model: Model, vocabulary: int) -> Task:
    """The token that follows each position of a sequence.

    Outputs are logits, shape (batch, T, vocabulary).

    Args:
        dataset: features are tokens, shape (examples, T), integers, alone or as ``input_ids``;
            labels the tokens that follow, −100 where none does.
        model: from tokens to logits.
        vocabulary: how many tokens there are; they are numbered from 0.
    """
    shapes = dataset.structure
    structure = replace(
        shapes,
        features=shapes.features.of_tokens(vocabulary),
        labels=replace(shapes.labels, bound=vocabulary),
    )
    return Task(dataset, _flat(model), token_cross_entropy, (PERPLEXITY, TOKEN_ACCURACY), structure)


def regression(dataset: Dataset, model: Model) -> Task:
    """Real labels of any shape, under the squared error.

    Outputs are as many numbers as labels.

    Args:
        dataset: labels of a floating type, shape (examples, …).
        model: from features to predictions.
    """
    return Task(dataset, _flat(model), squared_error, (MAE, RMSE), dataset.structure)


def multi_label(dataset: Dataset, model: Model) -> Task:
    """Several labels of 0 or 1 for each example.

    Outputs are logits, one for each label.

    Args:
        dataset: labels are 0.0 or 1.0, of a floating type, shape (examples, labels).
        model: from features to logits.
    """
    shapes = dataset.structure
    structure = replace(shapes, labels=replace(shapes.labels, bound=2))
    return Task(dataset, _flat(model), binary_cross_entropy, (F1, AUC), structure)


def _flat(model: Model) -> FlatModel:
    if isinstance(model, FlatModel):
        return model
    return FlatModel(model)
