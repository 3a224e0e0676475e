"""Means of the rows that count, and releases in the units of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data import Encoding
from fedmf.moments import fieller
from fedmf.typing import Array, Vector

TOO_FEW: Final = "too few valid rows to tell"


def counted_fields(
    sums: Mapping[str, NDArray[Any]], variances: Vector, weights: Vector, weight: float, covariance: bool
) -> dict[str, NDArray[Any]]:
    """What releases say of the rows that count: their share, means with intervals, covariances.

    With R the last number of `first`, N̂ = R/c is the weight of the valid rows, m̂ = Y/N̂ their mean
    (`fedmf.moments.fieller`), and S/N̂ − m̂m̂ᵀ + v/N̂²·(I + m̂m̂ᵀ/c²) their covariance, unbiased up to terms of
    order v/N̂².

    Args:
        sums: "first" (releases, d + 1) and "second", (releases, d + 1, d + 1) or its diagonal.
        variances: v_t of each coordinate of `first`.
        weights: w_t, by which the share is N̂/w_t.
        weight: c.
        covariance: whether `second` gives one.
    """
    first, second = sums["first"], sums["second"]
    d = first.shape[1] - 1
    found = fieller(first[:, :d], first[:, d], variances, weight)
    told: dict[str, NDArray[Any]] = {
        "mean": found.mean,
        "mean_low": found.low,
        "mean_high": found.high,
        "mean_standard_error": found.error,
        "valid_share": first[:, d] / (weight * weights),
        "valid_share_standard_error": np.sqrt(variances) / (weight * weights),
        "too_few": np.array([TOO_FEW if few else "" for few in found.few], dtype=object),
    }
    if covariance:
        with np.errstate(divide="ignore", invalid="ignore"):
            counted = first[:, d] / weight
            squares = variances / counted**2
            if second.ndim == 3:
                outer = found.mean[:, :, None] * found.mean[:, None, :]
                noise = squares[:, None, None] * (np.eye(d) + outer / weight**2)
                told["covariance"] = second[:, :d, :d] / counted[:, None, None] - outer + noise
            else:
                outer = found.mean**2
                noise = squares[:, None] * (1 + outer / weight**2)
                told["covariance"] = second[:, :d] / counted[:, None] - outer + noise
    return told


def in_own_units(fields: Mapping[str, NDArray[Any]], encoding: Encoding) -> dict[str, NDArray[Any]]:
    """Means, covariances and their errors and intervals as the columns of the table have them.

    A coordinate z stands for center + scale·z; intervals are cut to the bounds that the schema declares.
    """
    scales, (lower, upper) = encoding.scales, encoding.bounds
    told = dict(fields)
    told["mean"] = encoding.centers + scales * fields["mean"]
    told["mean_standard_error"] = scales * mean_errors(fields)
    for name in ("mean_low", "mean_high"):
        if name in fields:
            told[name] = np.clip(encoding.centers + scales * fields[name], lower, upper)
    for name in ("covariance", "covariance_standard_error"):
        if name in fields:
            told[name] = fields[name] * (
                np.multiply.outer(scales, scales) if fields[name].ndim == 3 else scales**2
            )
    return told


def mean_errors(fields: Mapping[str, NDArray[Any]]) -> Array:
    """Standard errors of means, shape (releases, d) or (releases, 1)."""
    error = fields["mean_standard_error"]
    return error if error.ndim == 2 else error[:, None]
