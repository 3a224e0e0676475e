"""Strategy matrices of other libraries, with the sensitivity of their coefficients by this one."""

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
        stated: the sensitivity by the other library; None if it states none.
    """

    factorization: Factorization
    sensitivity: Sensitivity
    stated: float | None

    @property
    def under_noised(self) -> bool:
        """Whether the stated sensitivity is too small, so that its noise is too small."""
        if self.stated is None or self.sensitivity.kind != "exact":
            return False
        return self.stated < self.sensitivity.value * (1 - 1e-6)


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

    >>> imported = import_strategy([1.0, 0.5], Participation(4, 2, 2), stated=1.0)
    >>> round(imported.sensitivity.value, 6), imported.under_noised
    (1.581139, True)
    """
    if hasattr(strategy, "coefficients") and not hasattr(strategy, "buf_decay"):
        recipe = strategy
        setting = {
            "n_steps": participation.rounds,
            "min_sep": participation.min_separation,
            "max_participations": participation.max_participations,
        }
        if stated is None:
            stated = float(recipe.sensitivity(**setting))
        strategy = recipe.coefficients(**setting)
    C = _factorization_of(strategy, participation.rounds)
    return ImportedStrategy(C, sensitivity_of(C, participation), stated)


def _factorization_of(strategy: Any, rounds: int) -> Factorization:
    """C from a BLT, from the first column of a Toeplitz C, or from a matrix."""
    if hasattr(strategy, "buf_decay"):
        decays = np.asarray(strategy.buf_decay, np.float64)
        weights = np.asarray(strategy.output_scale, np.float64)
        return BufferedToeplitz(decays, weights, rounds)
    try:
        values = np.asarray(strategy, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"strategy must be coefficients, a matrix, a BLT or a recipe; got {strategy!r:.80}."
            " Read a file first, for example with np.load."
        ) from None
    if values.ndim == 1:
        return Toeplitz(values, rounds)
    if values.ndim == 2:
        return Dense(values)
    raise ValueError(
        f"strategy must be coefficients, a matrix, a BLT or a recipe; got shape {values.shape}."
    )
