"""How all time is cut into segments, each with a mechanism and keys of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fedmf.moments.mechanism import MomentMechanism
from fedmf.moments.methods import mechanism_from_dict


@final
class SegmentMechanisms:
    """That of each segment; the first is part of the plan, later ones are kept with the stream's state.

    Args:
        first: of segment 0.
        design: makes that of a later segment; None where all segments have the first.
        check: raises `ValueError` if the mechanism of a segment, as it was kept, does not follow from its
            coefficients.
    """

    def __init__(
        self,
        first: MomentMechanism,
        design: Callable[[int], MomentMechanism] | None,
        check: Callable[[int, MomentMechanism], None],
    ) -> None:
        self._made, self._design, self._check = [first], design, check

    def of(self, segment: int) -> MomentMechanism:
        """The mechanism of a segment, made now if the stream did not come to it yet."""
        if self._design is None:
            return self._made[0]
        while len(self._made) <= segment:
            self._made.append(self._design(len(self._made)))
        return self._made[segment]

    def __iter__(self) -> Iterator[MomentMechanism]:
        return iter(self._made)

    def added(self) -> list[dict[str, Any]]:
        """Those after the first, JSON-able with every digit."""
        return [made.to_dict() for made in self._made[1:]]

    def load(self, added: Sequence[Mapping[str, Any]]) -> None:
        """Take up what `added` gave.

        Raises:
            ValueError: one does not follow from its coefficients.
        """
        self._made = [self._made[0], *(mechanism_from_dict(description) for description in added)]
        for segment, made in enumerate(self._made):
            self._check(segment, made)


class Segments(ABC):
    """A partition of the steps 0, 1, 2, … into segments 0, 1, …; abstract. Public, fixed at the start."""

    @abstractmethod
    def start(self, segment: int) -> int:
        """The first step of a segment."""

    @abstractmethod
    def of_step(self, step: int) -> int:
        """The segment of a step."""

    @abstractmethod
    def rounds(self, segment: int) -> int:
        """n of the segment's mechanism: its steps, and those before that its noise goes back to."""

    @abstractmethod
    def memory(self, segment: int) -> int:
        """How many rows of noise before its first step the noise of a segment goes on from."""

    def steps(self, segment: int) -> int:
        """Steps of a segment."""
        return self.start(segment + 1) - self.start(segment)


@final
@dataclass(frozen=True)
class Growing(Segments):
    """Segment j has L·g^j steps and noise that is independent of all before.

    Args:
        first: L ≥ 1.
        growth: g ≥ 2.

    >>> cut = Growing(4, 2)
    >>> [cut.start(j) for j in range(4)], cut.of_step(11), cut.of_step(12), cut.steps(2)
    ([0, 4, 12, 28], 1, 2, 16)
    """

    first: int
    growth: int

    def start(self, segment: int) -> int:
        """See `Segments.start`."""
        return self.first * (self.growth**segment - 1) // (self.growth - 1)

    def of_step(self, step: int) -> int:
        """See `Segments.of_step`."""
        segment = 0
        while self.start(segment + 1) <= step:
            segment += 1
        return segment

    def rounds(self, segment: int) -> int:
        """See `Segments.rounds`."""
        return self.steps(segment)

    def memory(self, segment: int) -> int:
        """None."""
        return 0


@final
@dataclass(frozen=True)
class Steady(Segments):
    """Segments of equal length of one strategy matrix that goes on for ever: noise goes on across them.

    The last p − 1 rows of noise of a segment are those before the first of the next. Only the keys change.

    Args:
        length: n of the matrix by which noise is made, a multiple of p − 1.
        reach: p − 1, how many earlier rows of C⁻¹z a row needs; 0 for none.

    >>> cut = Steady(length=8, reach=2)
    >>> [cut.start(j) for j in range(4)], [cut.of_step(t) for t in (7, 8, 13, 14)], cut.steps(1)
    ([0, 8, 14, 20], [0, 1, 1, 2], 6)
    """

    length: int
    reach: int

    def start(self, segment: int) -> int:
        """See `Segments.start`."""
        return 0 if segment == 0 else self.length + (segment - 1) * (self.length - self.reach)

    def of_step(self, step: int) -> int:
        """See `Segments.of_step`."""
        return 0 if step < self.length else 1 + (step - self.length) // (self.length - self.reach)

    def rounds(self, segment: int) -> int:
        """n of the one matrix."""
        return self.length

    def memory(self, segment: int) -> int:
        """p − 1, none for the first."""
        return self.reach if segment else 0
