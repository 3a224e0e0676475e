"""AUC, confusion matrix and R² equal those of scikit-learn, with ties and missing classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, r2_score, roc_auc_score
from torch import nn

import fedmf
from fedmf.data import InMemoryDataset
from fedmf.training.final_metrics import final_metrics, mean_area


def dataset(x: torch.Tensor, y: torch.Tensor, classes: int = 0) -> InMemoryDataset:
    return InMemoryDataset(
        features=x[:4],
        labels=y[:4],
        owned=[*np.arange(4).reshape(4, 1)],
        user_ids=["a", "b", "c", "d"],
        test_features=x,
        test_labels=y,
        classes=classes,
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_classes(classes: int) -> None:
    rng = np.random.default_rng(classes)
    x = torch.from_numpy(rng.integers(-2, 3, (300, 3)).astype(np.float32))  # with ties
    y = torch.from_numpy(rng.integers(0, classes, 300))
    task = fedmf.classification(dataset(x, y, classes), nn.Linear(3, classes))
    assert isinstance(task, fedmf.Task)
    theta = task.model.initial()
    found = final_metrics(task, theta)
    outputs = task.outputs(theta, x).to(torch.float64)
    probabilities = outputs.softmax(dim=1).numpy()
    scores = probabilities[:, 1] if classes == 2 else probabilities
    assert found["auc"] == pytest.approx(roc_auc_score(y, scores, multi_class="ovr"), abs=1e-12)
    assert found["confusion_matrix"] == confusion_matrix(y, outputs.argmax(dim=1)).tolist()
    assert math.isnan(mean_area(outputs, np.ones(300, dtype=int)))


def test_numbers() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(100, 3)).astype(np.float32))
    y = x[:, :2] + 0.1
    task = fedmf.regression(dataset(x, y), nn.Linear(3, 2))
    assert isinstance(task, fedmf.Task)
    theta = task.model.initial()
    found = final_metrics(task, theta)
    expected = r2_score(y.double(), task.outputs(theta, x).double())
    assert found["r2"] == pytest.approx(expected, rel=1e-9)
    assert final_metrics(task, theta * math.nan)["r2"] is None
