"""The noise of every round, and the matrix that correlates it: public, since the plan decides it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import RunHeader

#: Rows of C⁻¹ that are shown.
_SHOWN: Final = 48


@dataclass(frozen=True, eq=False)
class NoiseLevel:
    """Standard deviations of one coordinate, per round; empty arrays in a run without noise.

    Attributes:
        mean: of the noise in the round's mean update, τ·‖[C⁻¹]_t‖/m with τ the deviation of the streamed z
            and m the planned cohort size, shape (n,).
        total: of that in the sum of the means up to the round, τ·‖[A C⁻¹]_t‖/m, A of ones, shape (n,).
        signal: ζ/(mean·√d): how many times longer than the noise a mean update could be at most, if all m
            updates were as long as the clip norm and pointed the same way, shape (n,).
        correlation: the leading block of C⁻¹, at most 48 rows.
    """

    mean: NDArray[np.float64]
    total: NDArray[np.float64]
    signal: NDArray[np.float64]
    correlation: NDArray[np.float64]


def noise_level(header: RunHeader) -> NoiseLevel:
    """Of a run's plan; nothing of it depends on data or on who took part."""
    plan = header.plan
    if plan.noise_multiplier == 0:
        return NoiseLevel(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, 0)))
    C, n = plan.mechanism.factorization, plan.participation.rounds
    scale = plan.noise_std * plan.inflation / plan.cohorts.size
    mean = scale * np.sqrt(C.noise_row_variances())
    total = scale * np.sqrt(C.query_variances(np.ones(n)))
    block = C.leading(min(n, _SHOWN))
    correlation = block.recurrence().apply(np.eye(block.rounds))
    return NoiseLevel(mean, total, plan.privacy.clip_norm / (mean * math.sqrt(header.dimension)), correlation)
