"""What an array of a stranger must look like before a byte of it is decoded."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from flwr.app import Array
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

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
