"""Workloads applied row by row: A·(x̂_1 … x̂_t) from x̂_t and a small state.

`RunningMoments` applies one to each noisy moment; all of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from fedmf.matrices.arrays import Vector
from fedmf.mechanisms.workload import ToeplitzWorkload


def recursion_of(workload: ToeplitzWorkload) -> tuple[Vector, Vector]:
    """(num, den) with Σ_j den_j y_{t−j} = Σ_j num_j v_{t−j}, den_0 = 1, for y = LTT(a)v.

    From the known factors of a(x) where it has any with whole exponents, else num = a up to its
    last non-zero coefficient and den = 1.

    >>> from fedmf.mechanisms.workload import window
    >>> recursion_of(window(4, 8))
    (array([ 0.25,  0.  ,  0.  ,  0.  , -0.25]), array([ 1., -1.]))
    """
    a = workload.coefficients
    plain = a[: np.flatnonzero(a)[-1] + 1]
    factors = workload.factors
    if factors is None or any(exponent != int(exponent) for _, exponent, _ in factors):
        return plain, np.ones(1)
    num = np.full(1, a[0])
    den = np.ones(1)
    for rho, exponent, stride in factors:
        factor = np.zeros(stride + 1)
        factor[0] = 1.0
        factor[stride] = -rho
        for _ in range(abs(int(exponent))):
            if exponent > 0:
                num = np.convolve(num, factor)
            else:
                den = np.convolve(den, factor)
    if np.count_nonzero(num) + np.count_nonzero(den) < plain.size + 1:
        return num, den
    return plain, np.ones(1)


@final
class RunningWorkload:
    """Applies A row by row to vectors of a fixed size.

    Args:
        workload: A.
        size: length of the vectors.
        device: where they live.

    Guarantees:
        Memory is (number of past inputs and outputs in the recursion) × size: 1 for prefix sums,
        averages and exponential decay, w + 1 for a window, n for a workload without known factors.
    """

    def __init__(
        self,
        workload: ToeplitzWorkload,
        size: int,
        device: str = "cpu",
    ) -> None:
        self.workload = workload
        self._t = 0
        self._num, self._den = recursion_of(workload)
        inputs = self._num.size - 1
        outputs = self._den.size - 1
        self._inputs = torch.zeros(inputs, size, dtype=torch.float64, device=device)
        self._outputs = torch.zeros(outputs, size, dtype=torch.float64, device=device)

    @property
    def t(self) -> int:
        """Number of vectors so far."""
        return self._t

    def update(self, value: torch.Tensor) -> torch.Tensor:
        """Row t of A times the inputs so far, as a new tensor.

        Args:
            value: x̂_t, shape (size,), float64.

        Raises:
            ValueError: called more than n times.
        """
        return self.extend(value[None])[0]

    def extend(self, values: torch.Tensor, *, owned: bool = False) -> torch.Tensor:
        """The next rows of A times the inputs so far, bit for bit those of repeated `update`.

        Args:
            values: x̂_t, x̂_{t+1}, …, shape (rows, size), float64.
            owned: whether the result may take their place: writing fresh memory costs more than
                the sums.

        Returns:
            Shape (rows, size), a new tensor unless `owned`.

        Raises:
            ValueError: fewer rows are left; nothing has changed.
        """
        t = self._t
        n = self.workload.rounds
        column_weights = self.workload.column_weights
        row_weights = self.workload.row_weights
        if t + len(values) > n:
            raise ValueError(
                f"t (step) must be below n (horizon) = {n}; got {t + len(values) - 1}."
            )
        if column_weights is not None:
            values = values * _column(column_weights, t, values)
            owned = True
        out = self._weighted_inputs(values, owned)
        self._feed_back(out)
        self._t = t + len(values)
        if row_weights is not None:
            out.mul_(_column(row_weights, t, out))
        return out

    def _weighted_inputs(self, values: torch.Tensor, owned: bool) -> torch.Tensor:
        """Σ_j num_j v_{t−j} for each row, j from 0 on, every product rounded before it is added."""
        past = len(self._inputs)
        t = self._t
        if not past:
            if not owned:
                return values * self._num[0]
            if self._num[0] != 1.0:
                values.mul_(self._num[0])
            return values
        around = torch.cat([self._inputs.roll(-(t % past), 0), values])
        out = around[past:] * self._num[0]
        for lag in np.flatnonzero(self._num[1:]) + 1:
            out += around[past - lag : len(around) - lag] * self._num[lag]
        self._inputs = around[len(around) - past :].roll((t + len(values)) % past, 0)
        return out

    def _feed_back(self, out: torch.Tensor) -> None:
        """y_t ← y_t − Σ_{j ≥ 1} den_j y_{t−j} for each row in turn."""
        past = len(self._outputs)
        if not past:
            return
        from fedmf.moments.compiled_recursion import feed_back

        lags = np.flatnonzero(self._den[1:]) + 1
        rows = out.cpu().numpy()
        outputs = self._outputs.cpu().numpy()
        feed_back(rows, outputs, self._t, lags, self._den[lags])
        if out.device.type != "cpu":
            out.copy_(torch.from_numpy(rows))
            self._outputs.copy_(torch.from_numpy(outputs))

    def state_dict(self) -> dict[str, Any]:
        """t and the past vectors of the recursion, which are private outputs.

        `load_state_dict` continues exactly.
        """
        return {"t": self._t, "inputs": self._inputs.clone(), "outputs": self._outputs.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: the state is of another workload or size.
        """
        for name, mine in (("inputs", self._inputs), ("outputs", self._outputs)):
            if state[name].shape != mine.shape:
                raise ValueError(
                    f"{name} (state) must have shape {tuple(mine.shape)}; got"
                    f" {tuple(state[name].shape)}."
                )
        if not 0 <= state["t"] <= self.workload.rounds:
            raise ValueError(
                f"t (state) must be within n = {self.workload.rounds}; got {state['t']}."
            )
        self._t = int(state["t"])
        self._inputs.copy_(state["inputs"])
        self._outputs.copy_(state["outputs"])


def _column(weights: Vector, t: int, like: torch.Tensor) -> torch.Tensor:
    """The weights of rounds t, t + 1, … as a column."""
    return torch.from_numpy(weights[t : t + len(like)].copy())[:, None].to(like.device)
