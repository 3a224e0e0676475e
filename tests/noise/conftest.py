"""Recurrences with their dense C⁻¹, written here in NumPy so that nothing under test checks itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch


@dataclass(frozen=True)
class DenseRecurrence:
    """A recurrence and the dense matrix it must reproduce."""

    feedforward: np.ndarray
    feedback: np.ndarray
    row_scale: np.ndarray

    @property
    def inverse(self) -> np.ndarray:
        """C⁻¹ = diag(s)·LTT(1, g)⁻¹·LTT(f), by dense linear algebra."""
        n = self.row_scale.size
        monic = np.concatenate(([1.0], self.feedback))
        return self.row_scale[:, None] * np.linalg.solve(toeplitz(monic, n), toeplitz(self.feedforward, n))


def toeplitz(column: np.ndarray, n: int) -> np.ndarray:
    matrix = np.zeros((n, n))
    for lag, value in enumerate(column[:n]):
        matrix += value * np.eye(n, k=-lag)
    return matrix


def series(power: float, count: int) -> np.ndarray:
    """Coefficients of (1 − x)^power."""
    values = [1.0]
    for j in range(1, count):
        values.append(values[-1] * (j - 1 - power) / j)
    return np.array(values)


NONE = np.zeros(0)
RECURRENCES = {
    "identity": (np.ones(1), NONE, None),
    "inverse-lambda": (np.array([1.0, -0.9]), NONE, None),
    "inverse-banded-4": (series(0.5, 4), NONE, None),
    "banded-3": (np.array([0.8]), series(-0.5, 3)[1:], None),
    "feedback-full": (np.ones(1), series(-0.5, 40)[1:], None),
    "both": (np.array([1.0, 0.0, -0.3]), np.array([0.5, 0.0, 0.2]), None),
    "scaled-rows": (np.array([1.0, -0.7]), np.array([0.25]), "scaled"),
}


@pytest.fixture(params=sorted(RECURRENCES))
def recurrence(request: pytest.FixtureRequest):
    """Each kind of recurrence in turn, as a function of the horizon n."""

    def build(n: int) -> DenseRecurrence:
        feedforward, feedback, scale = RECURRENCES[request.param]
        rows = np.ones(n) if scale is None else np.linspace(2.0, 0.5, n)
        return DenseRecurrence(feedforward, feedback, rows)

    return build


@pytest.fixture
def named_recurrence():
    """One recurrence by name and horizon."""

    def build(name: str, n: int) -> DenseRecurrence:
        feedforward, feedback, scale = RECURRENCES[name]
        rows = np.ones(n) if scale is None else np.linspace(2.0, 0.5, n)
        return DenseRecurrence(feedforward, feedback, rows)

    return build


@pytest.fixture(autouse=True)
def _one_thread():
    """Several torch threads on busy cores wait for each other far longer than these small tests compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
