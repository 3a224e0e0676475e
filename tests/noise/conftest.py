"""Recurrences with their dense C⁻¹, written here in NumPy so that nothing under test checks itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedmf.mechanisms.streaming import Recurrence


@dataclass(frozen=True, eq=False)
class DenseRecurrence(Recurrence):
    """A recurrence and the dense matrix it must reproduce."""

    @property
    def inverse(self) -> np.ndarray:
        """C⁻¹ = diag(s)·(I + G)⁻¹·F with F, G lower triangular, by dense linear algebra."""
        n = self.row_scale.size
        left = np.eye(n) + lower_triangular(self.feedback, n, first=1)
        return self.row_scale[:, None] * np.linalg.solve(left, lower_triangular(self.feedforward, n))


def lower_triangular(coefficients: np.ndarray, n: int, first: int = 0) -> np.ndarray:
    """Entry (t, t − first − j) is coefficient j (of row t, where every row has its own)."""
    rows = np.broadcast_to(coefficients, (n, coefficients.shape[-1]))
    matrix = np.zeros((n, n))
    for t in range(n):
        for lag, value in enumerate(rows[t], start=first):
            if lag <= t:
                matrix[t, t - lag] = value
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


VARYING = {
    "varying-inverse": (3, 0),
    "varying-banded": (1, 4),
    "varying-both": (3, 2),
    "varying-dense": (99, 0),
}


def _build(name: str, n: int) -> DenseRecurrence:
    if name in VARYING:
        q, r = VARYING[name]
        rng = np.random.default_rng([q, r])
        f = rng.uniform(-0.5, 0.5, (n, min(q, n)))
        f[:, 0] = rng.uniform(0.6, 1.0, n)
        g = rng.uniform(-0.4, 0.4, (n, r)) if r else NONE
        return DenseRecurrence(f, g, np.linspace(2.0, 0.5, n))
    feedforward, feedback, scale = RECURRENCES[name]
    rows = np.ones(n) if scale is None else np.linspace(2.0, 0.5, n)
    return DenseRecurrence(feedforward, feedback, rows)


@pytest.fixture(params=["identity", "inverse-banded-4", "banded-3", "both", "scaled-rows", "varying-both"])
def recurrence(request: pytest.FixtureRequest):
    """A few kinds of recurrence in turn, as functions of the horizon n."""
    return lambda n: _build(request.param, n)


@pytest.fixture
def named_recurrence():
    """One recurrence by name and horizon."""
    return _build


@pytest.fixture(autouse=True)
def _one_thread():
    """Several torch threads on busy cores wait for each other far longer than these small tests compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
