"""How many canaries a run has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmf.values import Value, check_whole


@dataclass(frozen=True)
class Canaries(Value):
    """Simulated users that the server adds to the sums of a real run, so that the run audits itself.

    Each has a direction of its own and a fair secret coin: with heads it sends an update along its direction,
    longer than the clip norm, in as many rounds as a user may take part in, with tails nothing (for
    replace-one: the opposite). From what was released the coins are guessed; how many are right bounds ε of
    the run from below (docs/canaries.md).

    Args:
        count: how many; 0 for a run without canaries.
        seed: public seed of their directions; the coins follow from the run's key.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "simulated"
    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("count (of canaries)", self.count, 0, 1 << 20)
        check_whole("seed (of canaries' directions)", self.seed, 0, 2**63 - 1)
