"""What a release says, from its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.moments import NoisyMoments, PrivateGaussian, describe
from fedmf.streaming.outputs.counted import counted_fields, in_own_units, mean_errors
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Releases

#: Fields that are null where there is too much noise to say them.
_MAY_LACK: Final = ("correlation", "mean", "mean_standard_error", "covariance")
DECLARED: Final = (
    "density (of a release) must be left out with a schema, whose releases are in the columns' own "
    "units; got one."
)
NO_DENSITY: Final = (
    "covariance (of a release) must be there with noise of its own for a density: one workload for both "
    "moments, a full or diagonal second moment, and method jme, ime or cs."
)


class Renderer:
    """The fields of a release from its numbers; elementwise, so that no release depends on its neighbours.

    With w_t = Σ_i [A₁]_{ti}, v_t = τ₁²·‖(A₁C₁⁻¹)_t‖² and A₁ = A₂, Y_t/w_t is the private mean of the rows
    with weights [A₁]_{ti}/w_t, and S_t/w_t − (Y_t/w_t)(Y_t/w_t)ᵀ + v_t/w_t²·I their covariance, unbiased.
    Where valid rows are counted, both are of these alone (`counted_fields`). By a schema means and
    covariances are in the columns' own units, `first` and `second` in the schema's.

    Args:
        plan: of the stream.
        density: whether each release is to say its Gaussian density and intervals.

    Raises:
        ValueError: a density of what has no covariance with known noise.
    """

    def __init__(self, plan: StreamPlan, density: bool = False) -> None:
        self._plan, self._moment, self.density = plan, plan.second_moment, density
        first, second = plan.workload_names
        self._covariance = first == second and self._moment.gives_covariance
        self._encoding, self._weight = plan.settings.encoding, plan.settings.count_weight
        #: Whether means have intervals.
        self.intervals = density or self._weight > 0
        if density and self._encoding is not None:
            raise ValueError(DECLARED)
        if density and not (self._covariance and plan.mechanism.method.second_noise):
            raise ValueError(NO_DENSITY)

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
        """Of the d numbers of a row, as the input calls them; not of what counts rows."""
        return self.coordinates[:-1] if self._weight else self.coordinates

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Of all that `first` holds."""
        layout = self._plan.layout
        if not layout.vector:
            return layout.columns
        before = "".join(layout.columns)
        return tuple(f"{before}{i}" for i in range(1, layout.dimension + 1))

    @property
    def block_names(self) -> tuple[str, ...]:
        """Of the numbers of a second moment that are not one for each of a row."""
        return tuple(f"block {i}" for i in range(1, self._moment.size + 1))

    def noisy(self, fields: Mapping[str, NDArray[Any]]) -> NoisyMoments | None:
        """Mean and covariance of these fields with the variances of their noise.

        None where there is no covariance, or its noise has no variance in closed form (squares of private
        rows: pp).
        """
        if self._weight or "covariance" not in fields or "second_standard_error" not in fields:
            return None
        weights = self._plan.row_sums(0, fields["t"])
        return NoisyMoments(
            fields["mean"],
            fields["covariance"],
            fields["mean_standard_error"] ** 2,
            (fields["second_standard_error"] / weights) ** 2,
            self.norm_bound,
        )

    def gaussian(self, releases: Releases) -> PrivateGaussian:
        """The density of one release.

        Raises:
            ValueError: it has no covariance with known noise.
        """
        if self._encoding is not None:
            raise ValueError(DECLARED)
        noisy = self.noisy(self.fields(releases))
        if noisy is None:
            raise ValueError(NO_DENSITY)
        one = (noisy.mean[0], noisy.covariance[0], noisy.mean_variance[0], noisy.second_variance[0])
        return PrivateGaussian(NoisyMoments(*one, noisy.norm_bound))

    @property
    def norm_bound(self) -> float:
        """ζ."""
        return self._plan.mechanism.users.norm_bound

    def errors(self, fields: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """Standard errors of the noise of each number, to be broadcast to the shape of its field.

        Exact for first, second and mean; for a covariance `NoisyMoments.covariance_errors`. Squares of
        private rows (pp) have none in closed form.
        """
        errors = {"first": fields["standard_error"][:, None], "mean": mean_errors(fields)}
        if "valid_share_standard_error" in fields:
            errors["valid_share"] = fields["valid_share_standard_error"]
        if "second_standard_error" in fields:
            # Every number of a release is one packed number, times a constant.
            scale = self._moment.unpack(torch.ones(self._moment.size, dtype=torch.float64)).numpy()
            errors["second"] = np.multiply.outer(fields["second_standard_error"], scale)
        if "covariance_standard_error" in fields:
            errors["covariance"] = fields["covariance_standard_error"]
        return errors

    def fields(self, releases: Releases) -> dict[str, NDArray[Any]]:
        """What each release says, with a row per release.

        t, labels, first, second, mean, covariance; where valid rows are counted their share, intervals of
        means, and whether there are too few; the standard errors of `first`, of `mean`, of `second` (of
        its diagonal, for a matrix) and of each entry of `covariance`; with density what
        `fedmf.moments.describe` gives.
        Labels are arrays of objects, each a text; they are there where columns of labels were named. The
        covariance is there where both moments have one workload and the second holds squares.
        """
        d, numbers = len(self.coordinates), releases.numbers
        at = self.steps(releases)
        weights = torch.from_numpy(self._plan.row_sums(0, at))
        variances = torch.from_numpy(self._plan.variances(0, at))
        first = torch.from_numpy(numbers[:, :d])
        second = self._moment.unpack(torch.from_numpy(numbers[:, d:]))
        told: dict[str, NDArray[Any]] = {"t": at, **self._labels(releases)}
        told |= {"first": first.numpy(), "second": second.numpy()}
        if self._weight:
            told |= counted_fields(told, variances.numpy(), weights.numpy(), self._weight, self._covariance)
        else:
            told |= self._plain_fields(first, second, variances, weights)
        told["standard_error"] = variances.sqrt().numpy()
        if not self._weight:
            told["mean_standard_error"] = (variances.sqrt() / weights).numpy()
        if self._plan.mechanism.method.second_noise:
            told["second_standard_error"] = np.sqrt(self._plan.variances(1, at))
        noisy = self.noisy(told)
        if noisy is not None:
            told["covariance_standard_error"] = noisy.covariance_errors()
            if self.density:
                told |= describe(noisy)
        return told if self._encoding is None else in_own_units(told, self._encoding)

    def _plain_fields(
        self, first: torch.Tensor, second: torch.Tensor, variances: torch.Tensor, weights: torch.Tensor
    ) -> dict[str, NDArray[np.float64]]:
        """Mean and covariance of all rows."""
        mean = first / weights[:, None]
        told = {"mean": mean}
        if self._covariance:
            scaled = second / weights.reshape(-1, *(second.ndim - 1) * [1])
            told["covariance"] = self._moment.covariances(mean, scaled, variances / weights**2)
        return {name: values.numpy() for name, values in told.items()}

    def _labels(self, releases: Releases) -> dict[str, NDArray[np.object_]]:
        texts = [releases.label(i) for i in range(len(releases))]
        names = self.label_names
        return {name: np.array([row[i] for row in texts], dtype=object) for i, name in enumerate(names)}

    def lines(self, releases: Releases) -> bytes:
        """JSON lines of the releases."""
        fields = self.fields(releases)
        columns = [
            nullable(values).tolist() if name in _MAY_LACK else values.tolist()
            for name, values in fields.items()
        ]
        dump = json.JSONEncoder(allow_nan=False, check_circular=False).encode
        rows = (dump(dict(zip(fields, row, strict=True))) for row in zip(*columns, strict=True))
        return "".join(row + "\n" for row in rows).encode()


def nullable(values: NDArray[np.float64]) -> NDArray[Any]:
    """With None for NaN: what is too noisy to say."""
    lacking = np.isnan(values)
    if not lacking.any():
        return values
    nullable = values.astype(object)
    nullable[lacking] = None
    return nullable
