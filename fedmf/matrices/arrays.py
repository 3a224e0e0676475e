"""Array types, named by what they hold; every room that computes uses them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Real numbers of any shape."""

Vector = NDArray[np.float64]
"""Real numbers, shape (n,)."""

Matrix = NDArray[np.float64]
"""Real numbers, shape (m, n)."""
