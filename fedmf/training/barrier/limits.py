"""What one user may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedmf.data import ExampleStructure


@dataclass(frozen=True)
class UserLimits:
    """Most that one user may cost in a round; a user beyond contributes the zero vector. None: no limit.

    Args:
        examples: number of examples, at least 1.
        steps: of local training, at least 1.
        megabytes: of the examples in memory, of 10⁶ bytes; with isolation also what training may take beside.
        seconds: wall-clock time of one user's loading and training, in a process of its own only: elsewhere a
            clock would see other users' work too.

    Raises:
        ValueError: a limit that is not positive.
    """

    examples: int | None = None
    steps: int | None = None
    megabytes: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("examples", "steps", "megabytes", "seconds"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"user_{name} must be positive and finite, or unset; got {limit!r}.")

    def exceeded(self, examples: int, steps: int, structure: ExampleStructure) -> str | None:
        """Which limit a user with so many examples and steps exceeds, in one line.

        >>> from fedmf.data import ExampleStructure, TensorStructure
        >>> numbers = TensorStructure((1000,))
        >>> UserLimits(megabytes=1.0).exceeded(200, 25, ExampleStructure(numbers, numbers))
        'user_megabytes is 1; the examples take 1.6'
        """
        size = examples * structure.example_bytes / 1e6
        for name, cost, what in (
            ("examples", examples, "the user has"),
            ("steps", steps, "the user would take"),
            ("megabytes", size, "the examples take"),
        ):
            limit = getattr(self, name)
            if limit is not None and cost > limit:
                return f"user_{name} is {limit:g}; {what} {cost:g}"
        return None
