"""The choice of the rounds after which the server's state is kept."""

from __future__ import annotations

import math
import time
from typing import Final

#: Largest share of a run's time that checkpoints take, and most rounds between two of them.
_SHARE: Final = 0.02
_MOST_ROUNDS: Final = 100


class CheckpointInterval:
    """Rounds between checkpoints: a fixed number, or the least that takes little time.

    The seconds c of a checkpoint and r of a round are measured during the run. The interval is the
    smallest I with c ≤ 2 % of I·r, at most 100 rounds. A state that is small enough to be part of
    its round's row costs nothing that could be measured, and is kept in every round. Released
    models do not depend on the interval.

    Args:
        fixed: the number of rounds; 0 to choose it.
        small: a state of at most this many bytes is kept in every round.
    """

    def __init__(self, fixed: int, small: int) -> None:
        self.fixed = fixed
        self._small = small
        self._bytes = 0
        self._with_state = 0.0
        self._without_state = math.inf
        self._began = 0.0
        self._rounds = -1

    def due(self, t: int, since: int) -> bool:
        """Whether the state after t rounds is kept, ``since`` rounds after the last one."""
        if self.fixed:
            return t % self.fixed == 0
        return since >= self._chosen

    @property
    def _chosen(self) -> int:
        """I; 1 until a checkpoint and a round were measured."""
        if self._bytes <= self._small or self._rounds < 1:
            return 1
        seconds = self._with_state
        if self._without_state < math.inf:
            seconds -= self._without_state
        round_seconds = (time.perf_counter() - self._began) / self._rounds
        return min(max(1, math.ceil(seconds / (_SHARE * round_seconds))), _MOST_ROUNDS)

    def note(self, seconds: float, state_bytes: int) -> None:
        """Note a round that was committed.

        Args:
            seconds: of its commit, with the packing of the state.
            state_bytes: the size of the state that was kept; 0 if none was.
        """
        self._rounds += 1
        if not self._rounds:
            self._began = time.perf_counter()
        if state_bytes:
            self._bytes = state_bytes
            self._with_state = seconds
        else:
            self._without_state = min(self._without_state, seconds)
