"""C and the rows of integers in rational arithmetic, from the numbers of a streaming form alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Matrix = list[list[Fraction]]
ZERO = Fraction(0)


@dataclass(frozen=True)
class ExactForm:
    """What C is exactly, and what the past of a row is a form of.

    Args:
        strategy: C.
        past: strictly lower; R_t is the integer nearest past·X, or −past·k if ``of_innovations``.
        of_innovations: see above.
    """

    strategy: Matrix
    past: Matrix
    of_innovations: bool

    def errors(self, k: np.ndarray, x: np.ndarray) -> Matrix:
        """e, the exact form less R = k − X, for k and X of shape (n, d)."""
        rows = k if self.of_innovations else x
        sign = -1 if self.of_innovations else 1
        exact = product(self.past, rows)
        n, d = x.shape
        past = [[int(k[t, i]) - int(x[t, i]) for i in range(d)] for t in range(n)]
        return [[sign * exact[t][i] - past[t][i] for i in range(d)] for t in range(n)]

    def balance(self, k: np.ndarray, x: np.ndarray, errors: Matrix, of_strategy: bool) -> Matrix:
        """D·k − C·X + B·e with B = C, or D; zero where the theorem applies."""
        n = len(self.strategy)
        diagonal = [[self.strategy[t][j] if t == j else ZERO for j in range(n)] for t in range(n)]
        spread = product(self.strategy if of_strategy else diagonal, errors)
        left = product(diagonal, k)
        right = product(self.strategy, x)
        rows = range(n)
        columns = range(x.shape[1])
        return [[left[t][i] - right[t][i] + spread[t][i] for i in columns] for t in rows]


def product(matrix: Matrix, rows: Any) -> Matrix:
    """matrix·rows for rows of integers or fractions."""
    values = [[v if isinstance(v, Fraction) else int(v) for v in row] for row in rows]
    result = []
    for line in matrix:
        total = [ZERO] * len(values[0])
        for entry, row in zip(line, values, strict=True):
            if entry:
                total = [a + entry * b for a, b in zip(total, row, strict=True)]
        result.append(total)
    return result


def fractions(values: Sequence[float]) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def inverse_of(lower: Matrix) -> Matrix:
    """The inverse of a lower-triangular matrix."""
    n = len(lower)
    inverse = [[ZERO] * n for _ in range(n)]
    for t in range(n):
        inverse[t][t] = 1 / lower[t][t]
        for j in range(t):
            total = sum((lower[t][m] * inverse[m][j] for m in range(j, t)), ZERO)
            inverse[t][j] = -total * inverse[t][t]
    return inverse


def exact_form(inverse: Any) -> ExactForm:
    """That of a `Recurrence` without one of the two kinds of coefficients, `StateSpace`,
    `BlockSums` or `SparseRows`.
    """
    kind = type(inverse).__name__
    scale = fractions(inverse.row_scale)
    if kind == "SparseRows":
        return _of_inverse(_sparse(inverse, scale))
    if kind == "Recurrence" and inverse.feedback.size == 0:
        return _of_inverse(_feedforward(inverse, scale))
    made = {"Recurrence": _feedback, "StateSpace": _decaying, "BlockSums": _blocks}
    unscaled, diagonal = made[kind](inverse)
    n = len(scale)
    past = [[scale[t] * unscaled[t][j] / scale[j] for j in range(n)] for t in range(n)]
    strategy = [
        [diagonal[t] / scale[t] * (past[t][j] if j < t else Fraction(j == t)) for j in range(n)]
        for t in range(n)
    ]
    return ExactForm(strategy, past, of_innovations=False)


def _of_inverse(inverse: Matrix) -> ExactForm:
    n = len(inverse)
    past = [[inverse[t][j] / inverse[j][j] if j < t else ZERO for j in range(n)] for t in range(n)]
    return ExactForm(inverse_of(inverse), past, of_innovations=True)


def _sparse(inverse: Any, scale: list[Fraction]) -> Matrix:
    n = len(scale)
    matrix = [[ZERO] * n for _ in range(n)]
    for t in range(n):
        for m in range(inverse.first[t], inverse.first[t + 1]):
            matrix[t][inverse.inputs[m]] += scale[t] * Fraction(float(inverse.weights[m]))
    return matrix


def _banded(coefficients: np.ndarray, n: int, first: int) -> Matrix:
    """Entry (t, t − first − j) is coefficient j, of row t where every row has its own."""
    rows = np.broadcast_to(coefficients, (n, coefficients.shape[-1]))
    matrix = [[ZERO] * n for _ in range(n)]
    for t in range(n):
        for lag, value in enumerate(fractions(rows[t]), start=first):
            if lag <= t:
                matrix[t][t - lag] = value
    return matrix


def _feedforward(inverse: Any, scale: list[Fraction]) -> Matrix:
    matrix = _banded(inverse.feedforward, len(scale), 0)
    return [[scale[t] * value for value in row] for t, row in enumerate(matrix)]


def _feedback(inverse: Any) -> tuple[Matrix, list[Fraction]]:
    n = inverse.row_scale.size
    leading = np.broadcast_to(inverse.feedforward, (n, 1))[:, 0]
    return _banded(inverse.feedback, n, 1), [1 / value for value in fractions(leading)]


def _decaying(inverse: Any) -> tuple[Matrix, list[Fraction]]:
    n = inverse.row_scale.size
    period = n if inverse.period is None else inverse.period
    decays = fractions(inverse.decays)
    weights = fractions(inverse.output_weights)
    matrix = [[ZERO] * n for _ in range(n)]
    for t in range(n):
        for j in range(t // period * period, t):
            terms = (w * decay ** (t - j - 1) for w, decay in zip(weights, decays, strict=True))
            matrix[t][j] = sum(terms, ZERO)
    return matrix, [Fraction(1)] * n


def _blocks(inverse: Any) -> tuple[Matrix, list[Fraction]]:
    n = inverse.row_scale.size
    period = inverse.gain.size
    matrix = [[ZERO] * n for _ in range(n)]
    gains = fractions(inverse.gain)
    for t in range(n):
        local = t % period
        for level in range(inverse.weights.shape[1]):
            if local >> level & 1:
                begin = t - local + (local >> level + 1 << level + 1)
                for j in range(begin, begin + 2**level):
                    matrix[t][j] = Fraction(float(inverse.weights[local, level]))
    return matrix, [1 / gains[t % period] for t in range(n)]
