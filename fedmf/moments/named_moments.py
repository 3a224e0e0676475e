"""Second moments by the names that configurations and command lines use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment, FullMatrix, SecondMoment

#: Second moments of all d coordinates by name.
SECOND_MOMENTS: Final[Mapping[str, Callable[[int], SecondMoment]]] = {
    "full": FullMatrix,
    "diagonal": DiagonalMoment,
    "trace": lambda dimension: BlockEnergies([dimension]),
}


def second_moment_named(name: str, dimension: int) -> SecondMoment:
    """The second moment of a name, or of block sizes such as "2,3".

    Args:
        name: one of `SECOND_MOMENTS`, or sizes of consecutive blocks that sum to d.
        dimension: d.

    Raises:
        ValueError: no such name, or sizes with another sum.

    >>> second_moment_named("2,3", 5).size
    2
    """
    if name in SECOND_MOMENTS:
        return SECOND_MOMENTS[name](dimension)
    texts = [size.strip() for size in name.split(",")]
    sizes = [int(size) for size in texts if size.isdecimal()]
    if len(sizes) < len(texts) or min(sizes) < 1 or sum(sizes) != dimension:
        raise ValueError(
            f"second_moment must be {', '.join(SECOND_MOMENTS)} or block sizes that sum to "
            f"d = {dimension}, such as 2,3; got {name!r}."
        )
    return BlockEnergies(sizes)
