"""Strategies that other libraries made, judged by the sensitivity of their own coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense, Factorization
from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.participation import Participation


@dataclass(frozen=True)
class ImportedStrategy:
    """A strategy of another library.

    Args:
        factorization: C.
        sensitivity: sens_{k,b}(C), by this package.
        stated: the same by the other library; None if it says nothing.
    """

    factorization: Factorization
    sensitivity: Sensitivity
    stated: float | None

    @property
    def under_noised(self) -> bool:
        """Whether noise for the stated sensitivity is too small: some user moves the output
        further.
        """
        return (
            self.stated is not None
            and self.sensitivity.kind == "exact"
            and self.stated < self.sensitivity.value * (1 - 1e-6)
        )


def import_strategy(
    strategy: Any, participation: Participation, stated: float | None = None
) -> ImportedStrategy:
    """Compute the sensitivity of another library's strategy matrix.

    Args:
        strategy: the first column of a Toeplitz C, shape (p,); C itself, shape (n, n); a BLT with
            ``buf_decay`` and ``output_scale`` (jax_privacy); or a recipe with ``coefficients`` and
            ``sensitivity``, which take n_steps, min_sep and max_participations (Opake).
        participation: (n, k, b).
        stated: the sensitivity that the library states; if None, taken from a recipe.

    Raises:
        ValueError: it is none of these, or longer than n rounds.

    >>> found = import_strategy([1.0, 0.5], Participation(4, 2, 2), stated=1.0)
    >>> round(found.sensitivity.value, 6), found.under_noised
    (1.581139, True)
    """
    n = participation.rounds
    if hasattr(strategy, "buf_decay"):
        decays, weights = (
            np.asarray(x, np.float64) for x in (strategy.buf_decay, strategy.output_scale)
        )
        made: Factorization = BufferedToeplitz(decays, weights, n)
    else:
        if hasattr(strategy, "coefficients"):
            asked = {
                "n_steps": n,
                "min_sep": participation.min_separation,
                "max_participations": participation.max_participations,
            }
            stated = float(strategy.sensitivity(**asked)) if stated is None else stated
            strategy = strategy.coefficients(**asked)
        values = np.asarray(strategy, np.float64)
        if values.ndim not in (1, 2):
            raise ValueError(
                "strategy must be coefficients, a matrix, a BLT or a recipe; got shape"
                f" {values.shape}."
            )
        made = Toeplitz(values, n) if values.ndim == 1 else Dense(values)
    return ImportedStrategy(made, sensitivity_of(made, participation), stated)
