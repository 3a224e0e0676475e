"""Users' examples as compiled functions take them, and what became of the users."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmf.compiled import inlined

#: An update so near to the clip norm may have been clipped to it before and rounded to float32.
NEAR = 1.0 - 2.0**-20
#: One below it adds nothing: all its integers are zero.
NOTHING = 2.0**-40


@inlined
def sign(norm, clip_norm):
    """+1 within the clip norm, −1 above or at it, 0 for an update that adds nothing."""
    if norm <= NOTHING * clip_norm:
        return 0
    return 1 if norm <= NEAR * clip_norm else -1


#: What became of a user.
COUNTED: Final = 0
NOT_FINITE: Final = 1
NO_CLASS: Final = 2
UNBOUNDED: Final = 3


class Rule(NamedTuple):
    """v ← β·v + g + μ·(θ − θ_t), θ ← θ − η·v; see `LocalSGD`."""

    learning_rate: float
    momentum: float
    proximal: float


class Examples(NamedTuple):
    """The examples of a group and the steps that use them; see `Group` and `StepRows`.

    Attributes:
        features: shape (examples, inputs), float32.
        labels: shape (examples,), int64.
        places: where each example of the group lies in them.
        edges: user u owns the examples edges[u] … edges[u + 1] − 1.
        rows, weights: shape (steps, users, width).
        active: how many users take each step.
        absent: shape (users,): users that stay where they start.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    places: NDArray[np.int64]
    edges: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    active: NDArray[np.int64]
    absent: NDArray[np.bool_]
