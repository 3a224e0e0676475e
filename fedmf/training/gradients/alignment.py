"""Where the numbers of each user begin in memory.

Matrix products on processors may round differently for matrices that begin elsewhere within a cache line.
Where every user's matrices begin alike, a user's bits do not depend on its place in a group.
"""

from __future__ import annotations

from torch import Tensor

_BYTES = 64


def aligned_empty(like: Tensor, users: int, *shape: int) -> Tensor:
    """Shape (users, *shape), type and device of ``like``; each user's numbers begin on a cache line."""
    length = 1
    for size in shape:
        length *= size
    unit = max(1, _BYTES // like.element_size())
    rows = like.new_empty(users, -(-length // unit) * unit)
    return rows[:, :length].view(users, *shape)


def aligned(x: Tensor) -> Tensor:
    """The same numbers, shape (users, …), such that each user's begin on a cache line, contiguous."""
    block = x[0]
    steps = (x.stride(0) * x.element_size()) % _BYTES == 0 or len(x) == 1
    if steps and block.is_contiguous() and x.data_ptr() % _BYTES == 0:
        return x
    return aligned_empty(x, *x.shape).copy_(x)
