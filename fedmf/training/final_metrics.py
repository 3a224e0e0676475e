"""Metrics of a finished run that are no sums over examples: AUC, confusion matrix and R².

They are computed once, from the outputs for the whole central test part.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.training.losses import cross_entropy, squared_error
from fedmf.training.task import Task

#: The largest number of classes of a confusion matrix.
_MOST_CLASSES: Final = 100


def final_metrics(task: Task, parameters: torch.Tensor) -> dict[str, Any]:
    """The final metrics of θ on the central test part; empty without one, or for other tasks.

    Returns:
        For classes ``auc``, the area under the ROC curve: of two classes that of the second one, of
        more the mean over classes of one against the rest; and ``confusion_matrix``, with a row for
        each true class and a column for each predicted one. For numbers ``r2``, the share of the
        variance that is explained, the mean over labels. None for a value that is not finite.
    """
    values: dict[str, Any] = {}
    if not len(task.dataset.test_labels):
        return values
    y = task.dataset.test_labels.cpu().numpy()
    if task.loss is cross_entropy and y.ndim == 1:
        outputs = task.outputs(parameters, task.dataset.test_features).to(torch.float64)
        values["auc"] = mean_area(outputs, y)
        classes = outputs.shape[1]
        if classes <= _MOST_CLASSES:
            places = classes * y + outputs.argmax(dim=1).numpy()
            counts = np.bincount(places, minlength=classes**2)
            values["confusion_matrix"] = counts.reshape(classes, classes).tolist()
    elif task.loss is squared_error:
        outputs = task.outputs(parameters, task.dataset.test_features).to(torch.float64)
        values["r2"] = explained(outputs.numpy().reshape(y.shape), y)
    return {name: _finite(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def mean_area(outputs: torch.Tensor, y: NDArray[np.integer]) -> float:
    """The AUC of logits, shape (examples, classes); NaN if no class can be told from others.

    >>> logits = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0], [0.0, 2.0]])
    >>> mean_area(logits, np.array([0, 1, 0, 1]))
    0.875
    """
    if not bool(outputs.isfinite().all()):
        return math.nan
    if outputs.shape[1] == 2:
        return _area((outputs[:, 1] - outputs[:, 0]).numpy(), y == 1)
    scores = outputs.log_softmax(dim=1).numpy()
    areas = [_area(scores[:, c], y == c) for c in range(scores.shape[1])]
    known = [area for area in areas if not math.isnan(area)]
    return float(np.mean(known)) if known else math.nan


def _area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The share of pairs of a positive and another example in the order of their scores.

    A pair with equal scores counts ½ (Mann and Whitney, 1947).
    """
    ones = int(positive.sum())
    pairs = ones * (len(positive) - ones)
    if not pairs:
        return math.nan
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((mean_ranks[places][positive].sum() - ones * (ones + 1) / 2) / pairs)


def explained(predicted: NDArray[np.float64], y: NDArray[np.floating]) -> float:
    """R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)², the mean over labels; NaN where a label is constant."""
    y = y.astype(np.float64)
    errors = np.square(y - predicted).sum(axis=0)
    deviations = np.square(y - y.mean(axis=0)).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.mean(1 - errors / deviations))
