"""The strategy matrix of a Gram matrix, for designs that are optimized as Gram matrices."""

from __future__ import annotations

import numpy as np

from fedmf.matrices.arrays import Array


def lower_factor(gram: Array) -> Array:
    """The lower-triangular C with CᵀC = X and a positive diagonal.

    The Cholesky factor L of X has LLᵀ = X, the other product. With J the reversal of all indices
    and L that of J X J, C = J Lᵀ J is lower triangular and CᵀC = X.

    Args:
        gram: X, symmetric and positive definite.

    Raises:
        numpy.linalg.LinAlgError: X is not positive definite.

    >>> C = lower_factor(np.array([[2.0, 1.0], [1.0, 1.0]]))
    >>> C, C.T @ C
    (array([[1., 0.],
           [1., 1.]]), array([[2., 1.],
           [1., 1.]]))
    """
    reversed_factor: Array = np.asarray(np.linalg.cholesky(gram[::-1, ::-1]), dtype=np.float64)
    return reversed_factor.T[::-1, ::-1].copy()
