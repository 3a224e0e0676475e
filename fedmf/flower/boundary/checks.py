"""What an array of a stranger must look like before a byte of it is decoded."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from flwr.app import Array
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedmf.training import UserFailure


class Quarantine:
    """Counts refused replies, for each user of a node apart.

    A user's replies decide about that user alone: one whose replies are useless takes neither another node
    nor another user of its own node with it. A node of one user is out as a whole. Refusing a reply of many
    users is a refusal for each of them; they are then asked one by one until a reply is used, so that whose
    fault it was shows.

    Guarantees:
        The last refusal before a user is out, and with limit r ≥ 2 the last r − 1, are of that user's own
        rows, or of replies of that user alone.

    Args:
        limit: r ≥ 1, how many refusals in a row are the last; 0 asks for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._refused: Counter[tuple[int | None, str]] = Counter()
        self._suspects: set[tuple[int | None, str]] = set()

    def refused(self, node: int, users: Iterable[str]) -> list[UserFailure]:
        """Note the refusal of a reply for some users; those for whom it was the last."""
        last, users = list[UserFailure](), list(users)
        for user in users:
            self._suspects.add((node, user))
            if self._limit == 1 and len(users) > 1:  # whose fault it was shows when they are asked alone
                continue
            self._refused[node, user] += 1
            if self._refused[node, user] == self._limit:
                last.append(
                    UserFailure(user, "quarantine", f"node {node} is not asked for this user any more")
                )
        return last

    def accepted(self, node: int, users: Iterable[str]) -> None:
        """Note a reply that was used: refusals are counted anew."""
        for user in users:
            self._refused.pop((node, user), None)
            self._suspects.discard((node, user))

    def is_suspect(self, node: int, user: str) -> bool:
        """Whether the node's last reply about a user was refused: it is to be asked for that user alone."""
        return (node, user) in self._suspects

    def __contains__(self, node_and_user: tuple[int | None, str]) -> bool:
        """Whether a node is not asked for a user any more."""
        return 0 < self._limit <= self._refused[node_and_user]


#: What NumPy's file format may take beside the numbers.
_OVERHEAD: Final = 4096
_MOST_CHARACTERS: Final = 80


def checked_array(array: Array, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of an array that came as bytes, without a copy: read-only.

    Type, shape and size are compared first as declared, then as the bytes' own header says; the declared
    ones are only the sender's word. Nothing is allocated before.

    Args:
        array: as it came.
        name: for people.
        dtypes: NumPy's names of the types that are taken.
        shape: of it.

    Raises:
        ValueError: anything else.
    """
    if array.stype != SType.NUMPY or array.dtype not in dtypes or tuple(array.shape) != shape:
        raise ValueError(
            f"array {shown(name)} must be {' or '.join(dtypes)} of shape {shape}; got {shown(array.dtype)} "
            f"of shape {shown(list(array.shape))}"
        )
    length = math.prod(shape) * np.dtype(array.dtype).itemsize
    if not length <= len(array.data) <= length + _OVERHEAD:
        raise ValueError(f"array {shown(name)} must take {length} bytes; got {len(array.data)}")
    dtype, held, fortran, start = _header(array.data)
    if dtype != np.dtype(array.dtype) or held != shape or len(array.data) - start != length:
        raise ValueError(f"array {shown(name)} must hold what it declares; it holds {shown(str(dtype))}")
    numbers = np.frombuffer(array.data, dtype=dtype, offset=start)
    return numbers.reshape(shape, order="F" if fortran else "C")


def _header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Type, shape, order and offset of the numbers in NumPy's file format."""
    file = io.BytesIO(data[:_OVERHEAD])
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"array must be in NumPy's format 1.0 or 2.0; got {version}")
    shape, fortran, dtype = read(file)
    return dtype, shape, fortran, file.tell()


def shown(value: object) -> str:
    """What a stranger sent, for a log: short and escaped.

    >>> shown("two\\nlines")
    "'two\\\\nlines'"
    >>> len(shown("x" * 10**6)) <= 90
    True
    """
    if isinstance(value, str | bytes):
        return ascii(value[:_MOST_CHARACTERS])[: _MOST_CHARACTERS + 8]
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(item) for item in value[:4])}{', …' if len(value) > 4 else ''}]"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)[:_MOST_CHARACTERS]
