"""Several continuations of one run, accounted for together: the stacked matrix and its Gram entries.

A run that was copied after f rounds and continued twice releases, up to post-processing, M·X + σ·z with
independent z, X the sums of the shared rounds, of branch A and of branch B in this order, and

    M = [[C_11, 0, 0], [C_21, C_22, 0], [C'_21, 0, C'_22]],

C cut into the shared rounds and those of either branch. docs/forks.md proves it for any tree of branches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.matrices import Factorization
from fedmf.typing import Vector


class GramMatrix(Protocol):
    """What the sensitivity of a pattern asks of a matrix."""

    #: How many columns it has.
    rounds: int

    def gram_diagonal(self, gap: int) -> Vector:
        """[MᵀM]_{i,i+gap}, shape (rounds − gap,)."""
        ...


@dataclass(frozen=True)
class Segment:
    """Rounds first … stop − 1 of the run, released once.

    Args:
        first: the first of them, 0-based.
        stop: the first round after them.
        parent: which segment they follow, None for the beginning of the run.
    """

    first: int
    stop: int
    parent: int | None

    @property
    def rounds(self) -> int:
        """How many they are."""
        return self.stop - self.first


@dataclass(frozen=True)
class Branches:
    """A tree of segments: what several continuations of one run released.

    A row of the joint release has a place: rows are numbered segment by segment.

    Args:
        segments: each after its parent, and beginning with the round at which its parent stops.

    Raises:
        ValueError: a segment that does not follow its parent.

    >>> Branches.of_paths(["abcd", "abx"])[0].segments[1:]
    (Segment(first=2, stop=4, parent=0), Segment(first=2, stop=3, parent=0))
    >>> [places.tolist() for places in Branches.of_paths(["abcd", "abxyz"])[1]]
    [[0, 1, 2, 3], [0, 1, 4, 5, 6]]
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for index, segment in enumerate(self.segments):
            parent = segment.parent
            if parent is not None and not 0 <= parent < index:
                raise ValueError(f"parent (of segment {index}) must be an earlier segment; got {parent}.")
            begin = 0 if parent is None else self.segments[parent].stop
            if segment.first != begin or segment.stop < begin:
                raise ValueError(
                    f"segment {index} must begin at round {begin}, where its parent stops, and not stop "
                    f"before; got {segment.first}..{segment.stop}."
                )

    @classmethod
    def of_paths(cls, paths: Sequence[Sequence[Hashable]]) -> tuple[Self, list[NDArray[np.int64]]]:
        """The tree of continuations that share the rounds in which they agree from the beginning.

        Args:
            paths: for each continuation what identifies its rounds 0, 1, …: equal for the same release.

        Returns:
            The branches, and for each path the place of each of its rounds.
        """
        nodes: dict[tuple[int, Hashable], int] = {}
        parents: list[int] = []
        walks: list[list[int]] = []
        for path in paths:
            node, walk = -1, []
            for identity in path:
                following = nodes.setdefault((node, identity), len(parents))
                if following == len(parents):
                    parents.append(node)
                node = following
                walk.append(node)
            walks.append(walk)
        children = np.bincount(np.array(parents, dtype=np.int64) + 1, minlength=1)
        segments: list[Segment] = []
        of_node: list[int] = []
        for parent in parents:  # nodes of one segment were made one after the other
            if parent >= 0 and children[parent + 1] == 1:
                segment = of_node[parent]
                grown = segments[segment]
                segments[segment] = Segment(grown.first, grown.stop + 1, grown.parent)
            else:
                segment, begin = len(segments), 0 if parent < 0 else segments[of_node[parent]].stop
                segments.append(Segment(begin, begin + 1, None if parent < 0 else of_node[parent]))
            of_node.append(segment)
        branches = cls(tuple(segments))
        return branches, [branches._places(walk, of_node) for walk in walks]

    def _places(self, walk: Sequence[int], of_node: Sequence[int]) -> NDArray[np.int64]:
        segments = np.array([of_node[node] for node in walk], dtype=np.int64)
        firsts = np.array([segment.first for segment in self.segments], dtype=np.int64)
        return np.array(self.offsets, dtype=np.int64)[segments] + np.arange(len(walk)) - firsts[segments]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The place of the first row of each segment."""
        lengths = [segment.rounds for segment in self.segments]
        return tuple(np.cumsum([0, *lengths])[:-1].tolist())

    @cached_property
    def round_of(self) -> NDArray[np.int32]:
        """The round of each place, shape (rounds,)."""
        rounds = [np.arange(segment.first, segment.stop, dtype=np.int32) for segment in self.segments]
        return np.concatenate([np.empty(0, dtype=np.int32), *rounds])

    @property
    def rounds(self) -> int:
        """How many rows were released in all."""
        return sum(segment.rounds for segment in self.segments)

    @property
    def last(self) -> int:
        """The most rounds that any continuation released."""
        return max((segment.stop for segment in self.segments), default=0)

    @property
    def ends(self) -> int:
        """How many continuations there are that no other goes on with; 1 without any round."""
        parents = {segment.parent for segment in self.segments}
        return max(1, sum(index not in parents for index in range(len(self.segments))))

    def after(self, index: int) -> list[int]:
        """A segment and all that follow it."""
        found = {index}
        for i, segment in enumerate(self.segments):  # each stands after its parent
            if segment.parent in found:
                found.add(i)
        return sorted(found)

    def before(self, index: int) -> list[int]:
        """A segment and all that it follows."""
        found = [index]
        while (parent := self.segments[found[-1]].parent) is not None:
            found.append(parent)
        return found


class BranchGram:
    """[MᵀM] of the stacked matrix M, from Gram entries of leading blocks of C alone.

    For place i in segment p and place j in segment q at or after p, with rounds s ≤ t of the run,

        [MᵀM]_ij = Σ_{r at or after q} ([C_Tᵀ C_T]_st − [C_Fᵀ C_F]_st),   T = r.stop, F = r.first,

    C_T the leading T×T block of C and its Gram entry 0 where t ≥ T; segments of which none follows the other
    have [MᵀM]_ij = 0.

    Args:
        matrix: C.
        branches: what was released.

    Raises:
        ValueError: a branch goes on past the horizon of C.

    >>> from fedmf.factorization import Toeplitz
    >>> two, _ = Branches.of_paths(["ab", "ax"])
    >>> BranchGram(Toeplitz([1.0, 0.5], 2), two).gram_diagonal(0)  # M = [[1, 0, 0], [.5, 1, 0], [.5, 0, 1]]
    array([1.5, 1. , 1. ])
    """

    def __init__(self, matrix: Factorization, branches: Branches) -> None:
        if branches.last > matrix.rounds:
            raise ValueError(
                f"T (released rounds) must be at most n={matrix.rounds} in every branch; got {branches.last}."
            )
        self.branches = branches
        self.rounds = branches.rounds
        cuts = {cut for segment in branches.segments for cut in (segment.first, segment.stop)} - {0}
        self._blocks = {cut: matrix.leading(cut) for cut in sorted(cuts)}

    def gram_diagonal(self, gap: int) -> Vector:
        """[MᵀM]_{i,i+gap}, shape (rounds − gap,)."""
        entries = np.zeros(self.rounds - gap)
        diagonals: dict[tuple[int, int], Vector] = {}
        for p, q in self._related:
            earlier, later = self.branches.segments[p], self.branches.segments[q]
            start, end = self.branches.offsets[p], self.branches.offsets[q]
            # Places i of p for which i + gap lies in q.
            low = max(start, end - gap)
            high = min(start + earlier.rounds, end + later.rounds - gap)
            if low >= high:
                continue
            first = earlier.first + low - start
            distance = later.first + (low + gap - end) - first
            entries[low:high] = self._sums(q, distance, first, high - low, diagonals)
        return entries

    @cached_property
    def _related(self) -> list[tuple[int, int]]:
        """All pairs (p, q) of segments with q at or after p."""
        return [(p, q) for q in range(len(self.branches.segments)) for p in self.branches.before(q)]

    def _sums(
        self, q: int, distance: int, first: int, count: int, diagonals: dict[tuple[int, int], Vector]
    ) -> Vector:
        """Σ over the rows of q and what follows it, for rounds first … first + count − 1 and distance."""
        total = np.zeros(count)
        for r in self.branches.after(q):
            segment = self.branches.segments[r]
            for cut, sign in ((segment.stop, 1.0), (segment.first, -1.0)):
                if cut - distance <= first:
                    continue
                if (cut, distance) not in diagonals:
                    diagonals[cut, distance] = self._blocks[cut].gram_diagonal(distance)
                part = diagonals[cut, distance][first : first + count]
                total[: len(part)] += sign * part
        return total
