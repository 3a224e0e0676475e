"""What to store between rounds and what to draw again, by the memory there is and the time either takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch

from fedmf.factorization import Recurrence, SparseRows, StreamingInverse
from fedmf.noise.rows.costs import Costs
from fedmf.noise.rows.noise_storage import NoiseStorage
from fedmf.noise.rows.row_rules import CachedRows, RegeneratedRows, RowRule, of_inverse

_DIGEST_LABEL: Final = b"fedmf correlated noise, layout 2\x00"
_LARGEST_WRITTEN: Final = 4096
#: Past z of a vector on a CPU are stored unasked where they are few bytes and save so many draws a row.
_UNASKED_BYTES: Final = 1 << 22
_WORTH_DRAWS: Final = 1 << 14


def choose_rows(
    inverse: StreamingInverse,
    storage: NoiseStorage,
    length: int,
    costs: Callable[[], Costs],
    device: torch.device,
    whole: int | None = None,
) -> RowRule[Any]:
    """The rule for making rows.

    *regenerate* stores nothing: C⁻¹ is written out where its form stores vectors. *buffer* stores past z
    where they would be drawn again. *auto* follows the form of C⁻¹; with a limit it takes what fits, and
    where past z may either be stored or drawn again, what is faster. Only that last choice is measured. It
    is free to differ between machines, because both give the same bits. Without a limit, past z are stored on
    a CPU if they take at most 4 MiB and save at least 2¹⁴ draws a row.

    Args:
        inverse: C⁻¹.
        storage: policy, type and limit.
        length: elements of a vector.
        costs: measures them; called only if they matter.
        device: of the vector.
        whole: elements of the vector that it is a part of; None: it is no part.

    Raises:
        ValueError: the storage is not possible for this C⁻¹, or does not fit.
    """
    rule = of_inverse(inverse)
    if storage.policy == "regenerate":
        return RegeneratedRows(SparseRows.of(inverse)) if rule.vectors else rule
    if rule.vectors:
        if _fits(rule, length, storage):
            return rule
        if storage.policy == "buffer" or inverse.rounds > _LARGEST_WRITTEN:
            raise _too_large(rule, length, storage)
        return RegeneratedRows(SparseRows.of(inverse))
    if not isinstance(inverse, Recurrence) or inverse.feedforward.shape[-1] == 1:
        return rule
    cached = CachedRows(inverse)
    fits = _fits(cached, length, storage)
    if storage.policy == "buffer":
        if not fits:
            raise _too_large(cached, length, storage)
        return cached
    if storage.memory_limit is None:
        saved = (inverse.mean_regenerated_vectors - 1) * length
        size = stored_bytes(cached, length if whole is None else whole, torch.float64)
        few = device.type == "cpu" and size <= _UNASKED_BYTES
        return cached if few and saved >= _WORTH_DRAWS else rule
    if not fits:
        return rule
    draws, measured = inverse.mean_regenerated_vectors + 1, costs()
    return cached if measured.cached(draws) < measured.regenerated(draws) else rule


def check_inflation(inflation: float | None, dtype: torch.dtype) -> None:
    """Refuse a factor of the scale that is none, or none where rounding takes one.

    Raises:
        ValueError: it is below 1 or not finite, or None with vectors stored in float32.
    """
    if inflation is None and dtype != torch.float64:
        raise ValueError(
            f"inflation (F) must be given for vectors stored in {dtype}; got None. Rounding would void the "
            "guarantee without more noise: rounding_inflation of fedmf.factorization says how much."
        )
    if inflation is not None and not 1.0 <= inflation < math.inf:
        raise ValueError(f"inflation (F) must satisfy 1 <= F < inf; got {inflation}.")


def stored_bytes(rule: RowRule[Any], length: int, dtype: torch.dtype) -> int:
    """Bytes of the stored vectors; those that may not be rounded are float64."""
    return rule.vectors * length * (dtype if rule.roundable else torch.float64).itemsize


def digest_of(inverse: StreamingInverse, rounds: int, dtype: torch.dtype) -> str:
    """SHA-256 of horizon, coefficients and the type of stored vectors: equal digests mean equal rows."""
    state = hashlib.sha256(_DIGEST_LABEL + f"{rounds} {type(inverse).__name__} {dtype}".encode())
    for field in fields(inverse):  # type: ignore[arg-type]
        part = getattr(inverse, field.name)
        if isinstance(part, np.ndarray):
            kind = "<f8" if part.dtype.kind == "f" else "<i8"
            state.update(f"{field.name} {part.shape}\n".encode() + part.astype(kind).tobytes())
        else:
            state.update(f"{field.name} {part}\n".encode())
    return state.hexdigest()


def _fits(rule: RowRule[Any], length: int, storage: NoiseStorage) -> bool:
    limit = storage.memory_limit
    return limit is None or stored_bytes(rule, length, storage.torch_dtype) <= limit


def _too_large(rule: RowRule[Any], length: int, storage: NoiseStorage) -> ValueError:
    needed = stored_bytes(rule, length, storage.torch_dtype)
    return ValueError(
        f"memory_limit must be at least {needed} bytes for {rule.vectors} stored vectors; "
        f"got {storage.memory_limit}. Use fewer bands or a smaller shard."
    )
