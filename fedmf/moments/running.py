"""Workloads applied as the stream goes: A·(x̂_1 … x̂_t) from x̂_t and a small state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.workload import ToeplitzWorkload

__all__ = ["MatrixWorkload", "RunningWorkload", "recursion_of"]

Vector = NDArray[np.float64]


@final
class MatrixWorkload:
    """A lower-triangular workload without structure: the running form must keep all n private inputs.

    Args:
        matrix: A, shape (n, n), lower triangular, finite.

    Raises:
        ValueError: not a finite lower-triangular square matrix.
    """

    def __init__(self, matrix: NDArray[np.float64], name: str = "matrix") -> None:
        self.matrix = np.array(matrix, dtype=np.float64)
        self.name = name
        square = self.matrix.ndim == 2 and len(set(self.matrix.shape)) == 1 and self.matrix.size > 0
        if not square or not np.isfinite(self.matrix).all() or np.triu(self.matrix, 1).any():
            raise ValueError(
                f"A (workload) must be finite, square and lower triangular; got shape {self.matrix.shape}. "
                "A query may not look ahead."
            )

    @property
    def rounds(self) -> int:
        """n."""
        return len(self.matrix)

    def materialize(self) -> NDArray[np.float64]:
        """A."""
        return self.matrix


def recursion_of(workload: ToeplitzWorkload) -> tuple[Vector, Vector]:
    """(num, den) with Σ_j den_j y_{t−j} = Σ_j num_j v_{t−j}, den_0 = 1, for y = LTT(a)v.

    From the known factors of a(x) where it has any with whole exponents, else num = a up to its last
    non-zero coefficient and den = 1.

    >>> from fedmf.workload import window
    >>> recursion_of(window(4, 8))
    (array([ 0.25,  0.  ,  0.  ,  0.  , -0.25]), array([ 1., -1.]))
    """
    a = workload.coefficients
    plain = a[: np.flatnonzero(a)[-1] + 1]
    factors = workload.factors
    if factors is None or any(exponent != int(exponent) for _, exponent, _ in factors):
        return plain, np.ones(1)
    num, den = np.full(1, a[0]), np.ones(1)
    for rho, exponent, stride in factors:
        factor = np.zeros(stride + 1)
        factor[0], factor[stride] = 1.0, -rho
        for _ in range(abs(int(exponent))):
            if exponent > 0:
                num = np.convolve(num, factor)
            else:
                den = np.convolve(den, factor)
    shorter = np.count_nonzero(num) + np.count_nonzero(den) < plain.size + 1
    return (num, den) if shorter else (plain, np.ones(1))


@final
class RunningWorkload:
    """Applies A row by row to vectors of a fixed size.

    Args:
        workload: A.
        size: length of the vectors.
        device: where they live.

    Guarantees:
        Memory is (number of past inputs and outputs in the recursion) × size: 1 for prefix sums, averages
        and exponential decay, w + 1 for a window, n for a workload without structure.
    """

    def __init__(self, workload: ToeplitzWorkload | MatrixWorkload, size: int, device: str = "cpu") -> None:
        self.workload = workload
        self._t = 0
        if isinstance(workload, MatrixWorkload):
            inputs, outputs = workload.rounds - 1, 0
        else:
            self._num, self._den = recursion_of(workload)
            inputs, outputs = self._num.size - 1, self._den.size - 1
            self._past_inputs, self._past_outputs = _lags(self._num), _lags(-self._den)
        self._inputs = torch.zeros(inputs, size, dtype=torch.float64, device=device)
        self._outputs = torch.zeros(outputs, size, dtype=torch.float64, device=device)

    @property
    def memory_vectors(self) -> int:
        """How many vectors are kept."""
        return len(self._inputs) + len(self._outputs)

    def update(self, value: torch.Tensor) -> torch.Tensor:
        """Row t of A times the inputs so far, as a new tensor.

        Args:
            value: x̂_t, shape (size,), float64.

        Raises:
            ValueError: called more than n times.
        """
        t = self._t
        if t >= self.workload.rounds:
            raise ValueError(f"t (step) must be below n (horizon) = {self.workload.rounds}; got {t}.")
        if isinstance(self.workload, MatrixWorkload):
            row = torch.from_numpy(self.workload.matrix[t]).to(value.device)
            out = value * row[t] + row[:t] @ self._inputs[:t]
            if t < len(self._inputs):
                self._inputs[t] = value
        else:
            out = self._recursive(value)
        self._t = t + 1
        return out

    def _recursive(self, value: torch.Tensor) -> torch.Tensor:
        t, work = self._t, self.workload
        assert isinstance(work, ToeplitzWorkload)
        if work.column_weights is not None:
            value = value * float(work.column_weights[t])
        out = value * float(self._num[0])
        for past, terms in ((self._inputs, self._past_inputs), (self._outputs, self._past_outputs)):
            for lag, weight in terms:
                if lag <= t:
                    out.add_(past[(t - lag) % past.shape[0]], alpha=weight)
        for past, latest in ((self._inputs, value), (self._outputs, out)):
            if past.shape[0]:
                past[t % past.shape[0]].copy_(latest)
        return out if work.row_weights is None else out * float(work.row_weights[t])

    def state_dict(self) -> dict[str, Any]:
        """t and the vectors kept, which are private outputs; `load_state_dict` continues exactly."""
        return {"t": self._t, "inputs": self._inputs.clone(), "outputs": self._outputs.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: the state is of another workload or size.
        """
        for name, mine in (("inputs", self._inputs), ("outputs", self._outputs)):
            if state[name].shape != mine.shape:
                raise ValueError(
                    f"{name} (state) must have shape {tuple(mine.shape)}; got {tuple(state[name].shape)}."
                )
        if not 0 <= state["t"] <= self.workload.rounds:
            raise ValueError(f"t (state) must be within n = {self.workload.rounds}; got {state['t']}.")
        self._t = int(state["t"])
        self._inputs.copy_(state["inputs"])
        self._outputs.copy_(state["outputs"])


def _lags(coefficients: Vector) -> list[tuple[int, float]]:
    """(lag, coefficient) of those not zero, from lag 1 on."""
    return [(lag, float(coefficients[lag])) for lag in np.flatnonzero(coefficients).tolist() if lag]
