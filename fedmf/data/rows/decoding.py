"""Features of rows in Hugging Face's format, each decoded on its own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray
from torch import Tensor


def check_features(feature: Any, column: str) -> None:
    """Refuse a column that holds neither images nor numbers, by its type alone.

    Raises:
        ValueError: it does.
    """
    import datasets

    if isinstance(feature, datasets.Image):
        return
    kind = datasets.Features({column: feature}).arrow_schema.field(0).type
    kind = getattr(kind, "storage_type", kind)
    while (
        arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
    ):
        kind = kind.value_type
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise ValueError(f"feature_columns must hold images or numbers; got {kind} in {column!r}.")


def decoded(examples: Any, rows: NDArray[np.int64], column: str, shape: tuple[int, ...]) -> Tensor:
    """Features of these rows, float32: pixels in [0, 1] with channels first, or numbers as they are.

    Args:
        examples: a `datasets.Dataset`.
        rows: which of them, shape (m,).
        column: the feature column.
        shape: of one example; empty for that of the first that can be decoded.

    Returns:
        Shape (m, *shape). A row that cannot be decoded, is of another shape or not finite is all NaN; every
        row's numbers depend on that row alone.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what a row makes a decoder say is not for the screen
        values = [_example(value) for value in _values(examples.select_columns([column]), rows, column)]
    if not shape:
        shape = next((value.shape for value in values if value is not None and value.ndim), (1,))
    block = np.full((len(values), *shape), np.nan, dtype=np.float32)
    for place, value in zip(block, values, strict=True):
        if value is not None and value.shape == shape and np.isfinite(value).all():
            place[...] = value
    return torch.from_numpy(block)


def _values(light: Any, rows: NDArray[np.int64], column: str) -> list[Any]:
    """What the rows hold, decoded together or, if that fails, one by one; None for what cannot be."""
    try:
        return light[rows][column] if rows.size else []
    except Exception:  # whatever a decoder raises, it concerns one row
        if rows.size == 1:
            return [None]
        middle = rows.size // 2
        return [*_values(light, rows[:middle], column), *_values(light, rows[middle:], column)]


def _example(value: Any) -> NDArray[np.float32] | None:
    """One example; None for what is no array of numbers."""
    try:
        numbers = np.asarray(value)
        if numbers.dtype == np.uint8:
            pixels = numbers[None] if numbers.ndim == 2 else np.moveaxis(numbers, -1, 0)
            return pixels.astype(np.float32) / np.float32(255)
        return numbers.astype(np.float32) if numbers.dtype.kind in "iuf" else None
    except Exception:
        return None
