"""What a release says, from its numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.released import Releases

__all__ = ["Renderer"]


class Renderer:
    """The fields of a release from its numbers; elementwise, so that no release depends on its neighbours.

    With w_t = Σ_i [A₁]_{ti}, v_t = τ₁²·‖(A₁C₁⁻¹)_t‖² and A₁ = A₂, Y_t/w_t is the private mean of the rows
    with weights [A₁]_{ti}/w_t, and S_t/w_t − (Y_t/w_t)(Y_t/w_t)ᵀ + v_t/w_t²·I their covariance, unbiased.
    """

    def __init__(self, plan: StreamPlan) -> None:
        self._plan, self._moment = plan, plan.second_moment
        first, second = plan.workload_names
        self._covariance = first == second and self._moment.gives_covariance

    def steps(self, releases: Releases) -> NDArray[np.int64]:
        """t of each release."""
        steps = (self._plan.step_of(releases.first + i) for i in range(len(releases)))
        return np.array(list(steps), dtype=np.int64)

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the labels of a release are called, in their order."""
        return tuple(self._plan.settings.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the d numbers of a row, as the input calls them."""
        layout = self._plan.layout
        if not layout.vector:
            return layout.columns
        before = "".join(layout.columns)
        return tuple(f"{before}{i}" for i in range(1, layout.dimension + 1))

    @property
    def block_names(self) -> tuple[str, ...]:
        """Of the numbers of a second moment that are not one for each of a row."""
        return tuple(f"block {i}" for i in range(1, self._moment.size + 1))

    def errors(self, releases: Releases) -> dict[str, NDArray[np.float64]]:
        """Standard errors of the noise of each number, to be broadcast to the shape of its field.

        Exact for first, second and mean. That of a covariance depends on the true mean, for which the private
        one is put, its own variance taken off: Var Ŝ_ab + v(μ_a² + μ_b²) + v² for a ≠ b and
        Var Ŝ_aa + 4vμ_a² + 2v², all over w_t. Squares of private rows (pp) have none in closed form.
        """
        at = self.steps(releases)
        fields, weights = self.fields(releases), self._plan.row_sums(0, at)
        first = self._plan.variances(0, at)
        errors = {"first": np.sqrt(first)[:, None], "mean": (np.sqrt(first) / weights)[:, None]}
        if not self._plan.mechanism.method.second_noise:
            return errors
        # Every number of a release is one packed number, times a constant.
        scale = self._moment.unpack(torch.ones(self._moment.size, dtype=torch.float64)).numpy() ** 2
        second = np.multiply.outer(self._plan.variances(1, at), scale)
        errors["second"] = np.sqrt(second)
        if self._covariance:
            over = (-1, *[1] * scale.ndim)
            v = (first / weights**2).reshape(-1, 1)
            squares = v * np.maximum(fields["mean"] ** 2 - v, 0.0)
            if scale.ndim == 1:
                moved = 4 * squares + 2 * v**2
            else:
                moved = squares[:, :, None] + squares[:, None, :] + v[:, :, None] ** 2
                index = np.arange(squares.shape[1])
                moved[:, index, index] = 4 * squares + 2 * v**2
            errors["covariance"] = np.sqrt(second / (weights**2).reshape(over) + moved)
        return errors

    def fields(self, releases: Releases) -> dict[str, NDArray[Any]]:
        """t, labels, first, second, mean, covariance, standard error of `first`, each with a row per release.

        Labels are arrays of objects, each a text; they are there where columns of labels were named. The
        covariance is there where both moments have one workload and the second holds squares.
        """
        d, numbers = self._plan.layout.dimension, releases.numbers
        at = self.steps(releases)
        weights = torch.from_numpy(self._plan.row_sums(0, at))
        variances = torch.from_numpy(self._plan.variances(0, at))
        first = torch.from_numpy(numbers[:, :d])
        second = self._moment.unpack(torch.from_numpy(numbers[:, d:]))
        mean = first / weights[:, None]
        fields = {"first": first, "second": second, "mean": mean}
        if self._covariance:
            scaled = second / weights.reshape(-1, *(second.ndim - 1) * [1])
            noise = variances / weights**2
            fields["covariance"] = self._moment.covariances(mean, scaled, noise)
        fields["standard_error"] = variances.sqrt()
        arrays = {name: values.numpy() for name, values in fields.items()}
        return {"t": at, **self._labels(releases), **arrays}

    def _labels(self, releases: Releases) -> dict[str, NDArray[np.object_]]:
        texts = [releases.label(i) for i in range(len(releases))]
        names = self.label_names
        return {name: np.array([row[i] for row in texts], dtype=object) for i, name in enumerate(names)}

    def lines(self, releases: Releases) -> bytes:
        """JSON lines of the releases."""
        fields = self.fields(releases)
        columns = [values.tolist() for values in fields.values()]
        dump = json.JSONEncoder(allow_nan=False, check_circular=False).encode
        rows = (dump(dict(zip(fields, row, strict=True))) for row in zip(*columns, strict=True))
        return "".join(row + "\n" for row in rows).encode()
