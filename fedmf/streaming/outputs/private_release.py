"""What one step of a private stream releases, and the density it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedmf.moments import PrivateGaussian
from fedmf.streaming.outputs.renderer import DECLARED, NO_DENSITY, nullable
from fedmf.typing import Array


@dataclass(frozen=True, eq=False)
class PrivateRelease:
    """What one step releases; everything in it is private and may be published.

    Args:
        t: the step, 1 for the first.
        first: Y_t, shape (d,), units of a row.
        second: S_t: shape (d, d) for the full second moment, (size,) otherwise; squared units.
        mean: Y_t over the sum of the weights that the workload gives the rows; Y_t for running averages. With
            a schema in the columns' own units, as `covariance` is; where that counts valid rows it is
            of these, and NaN where they are too few.
        covariance: of the rows with those weights, unbiased, so not always positive definite (`gaussian`);
            (d, d) or the diagonal (d,). None where the two moments have different workloads or the second
            does not hold all squares.
        standard_error: √Var of each coordinate of `first`, τ₁·‖(A₁C₁⁻¹)_t‖: of the noise alone.
        norm_bound: ζ, which no row exceeds.
        mean_standard_error: √v of each coordinate of `mean`; with a schema one for each, shape (d,).
        second_standard_error: √Var of the noise of `second`, of its diagonal for a matrix (√½ of it off the
            diagonal); None for squares of private rows (pp).
        covariance_standard_error: √Var of each entry of `covariance`, the unknown mean replaced by the
            private one, its noise taken off; None where that has none in closed form.
        mean_low: where valid rows are counted, the lower ends of 95 % intervals of their means, (d,).
        mean_high: the upper ends.
        valid_share: where valid rows are counted, the share of their weight.
        valid_share_standard_error: of the noise alone.
        too_few: that there are too few valid rows to tell; empty where there are enough.
    """

    t: int
    first: Array
    second: Array
    mean: Array
    covariance: Array | None
    standard_error: float
    norm_bound: float
    mean_standard_error: float | Array
    second_standard_error: float | None = None
    covariance_standard_error: Array | None = None
    mean_low: Array | None = None
    mean_high: Array | None = None
    valid_share: float | None = None
    valid_share_standard_error: float | None = None
    too_few: str | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], norm_bound: float) -> Self:
        """A release from a line of `fedmf stream`, as read by `json.loads`, or a row of its Parquet file.

        Args:
            fields: by name; those of other things, such as timestamps, are passed over.
            norm_bound: ζ of the stream.
        """
        values: dict[str, Any] = {"covariance": None}
        for field in dataclasses.fields(cls):
            if (value := fields.get(field.name)) is not None:
                one = {"t": int, "too_few": str}.get(field.name, float)
                values[field.name] = _array(value) if isinstance(value, list | np.ndarray) else one(value)
        return cls(**{**values, "norm_bound": norm_bound})

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the fields of a line of `fedmf stream`."""
        fields = {
            name: value for name, value in vars(self).items() if value is not None and name != "norm_bound"
        }
        return {
            name: nullable(value).tolist() if isinstance(value, np.ndarray) else value
            for name, value in fields.items()
        }

    def gaussian(self) -> PrivateGaussian:
        """The Gaussian density of the rows: positive definite, with intervals, scores and log-density.

        Raises:
            ValueError: there is no covariance, its noise has no variance in closed form (pp), or the release
                is by a schema, in other units than the norm bound.
        """
        if isinstance(self.mean_standard_error, np.ndarray):
            raise ValueError(DECLARED)
        if self.covariance is None or self.second_standard_error is None:
            raise ValueError(NO_DENSITY)
        scale = self.standard_error / self.mean_standard_error  # the weights of the rows, summed
        return PrivateGaussian.of(
            self.mean,
            self.covariance,
            self.mean_standard_error,
            self.second_standard_error / scale,
            self.norm_bound,
        )


def _array(value: Any) -> Array:
    """Of lists in lists, as Parquet's rows are too."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return np.asarray(value, dtype=np.float64)
    return np.array(
        [_array(row) if isinstance(row, list | np.ndarray) else row for row in value], dtype=np.float64
    )
