"""The mechanisms of the segments of a stream, made as they are reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
