"""What to keep between rounds and what to draw again, by the memory there is and the time either takes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import torch

from fedmf.factorization import Recurrence, SparseRows, StreamingInverse
from fedmf.noise.kernels import KEPT_DTYPES, Domain, NoiseKernels
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.row_rules import CachedRows, RegeneratedRows, RowRule, of_inverse
from fedmf.noise.source import GaussianSource

__all__ = [
    "Costs",
    "Storage",
    "check_inflation",
    "choose_rows",
    "digest_of",
    "kept_bytes",
    "measured_costs",
]

Storage = Literal["auto", "regenerate", "buffer"]

_DIGEST_LABEL: Final = b"fedmf correlated noise, layout 2\x00"
_LARGEST_WRITTEN: Final = 4096
_ELEMENTS: Final = {"cpu": 1 << 19}
_ELEMENTS_ELSEWHERE: Final = 1 << 24
_REPEATS: Final = 3
#: Past z of a vector on a CPU are kept unasked where they are few bytes and save so many draws a row.
_UNASKED_BYTES: Final = 1 << 20
_WORTH_DRAWS: Final = 1 << 14


@dataclass(frozen=True)
class Costs:
    """Time per element: of one more z drawn in a row, and of one more kept vector read in it."""

    draw: float
    read: float

    def regenerated(self, draws: float) -> float:
        """A row of that many z, all drawn."""
        return draws * self.draw

    def cached(self, draws: float) -> float:
        """The same with earlier z kept: z_t is drawn for the row and the cache, which costs two writes."""
        return 2 * self.draw + (draws + 1) * self.read


def choose_rows(
    inverse: StreamingInverse,
    storage: Storage,
    memory_limit: int | None,
    length: int,
    buffer_dtype: torch.dtype,
    costs: Callable[[], Costs],
    device: torch.device,
) -> RowRule[Any]:
    """The rule for making rows.

    *regenerate* keeps nothing: C⁻¹ is written out where its form keeps vectors. *buffer* keeps past z where
    they would be drawn again. *auto* follows the form of C⁻¹; with a limit it takes what fits, and where past
    z may either be kept or drawn again, what is faster. Only that last choice is measured. It is free to
    differ between machines, because both give the same bits. Without a limit, past z are kept on a CPU if
    they take at most 1 MiB and save at least 2¹⁴ draws a row.

    Args:
        inverse: C⁻¹.
        storage: which.
        memory_limit: bytes that kept vectors may take; None: what the form of C⁻¹ needs, or 1 MiB.
        length: elements of a vector.
        buffer_dtype: of kept vectors that may be rounded.
        costs: measures them; called only if they matter.
        device: of the vector.

    Raises:
        ValueError: the storage is unknown, not possible for this C⁻¹, or does not fit.
    """
    if storage not in ("auto", "regenerate", "buffer"):
        raise ValueError(f"storage must be 'auto', 'regenerate' or 'buffer'; got {storage!r}.")
    if memory_limit is not None and memory_limit < 0:
        raise ValueError(f"memory_limit (bytes) must be at least 0; got {memory_limit}.")
    if buffer_dtype == torch.bfloat16:
        raise ValueError(
            "buffer_dtype must be float64 or float32; got torch.bfloat16, whose rounding moves the noise of "
            "neighbours apart by more than a user's update does, so that no scale makes up for it."
        )
    if buffer_dtype not in KEPT_DTYPES:
        raise ValueError(f"buffer_dtype must be float64 or float32; got {buffer_dtype}.")
    own = of_inverse(inverse)
    if storage == "regenerate":
        return RegeneratedRows(SparseRows.of(inverse)) if own.vectors else own
    if own.vectors:
        if _fits(own, length, buffer_dtype, memory_limit):
            return own
        if storage == "buffer" or inverse.rounds > _LARGEST_WRITTEN:
            raise _too_large(own, length, buffer_dtype, memory_limit)
        return RegeneratedRows(SparseRows.of(inverse))
    if not isinstance(inverse, Recurrence) or inverse.feedforward.shape[-1] == 1:
        return own
    cached = CachedRows(inverse)
    fits = _fits(cached, length, buffer_dtype, memory_limit)
    if storage == "buffer":
        if not fits:
            raise _too_large(cached, length, buffer_dtype, memory_limit)
        return cached
    if memory_limit is None:
        saved = (inverse.mean_regenerated_vectors - 1) * length
        few = device.type == "cpu" and _fits(cached, length, buffer_dtype, _UNASKED_BYTES)
        return cached if few and saved >= _WORTH_DRAWS else own
    if not fits:
        return own
    draws, measured = inverse.mean_regenerated_vectors + 1, costs()
    return cached if measured.cached(draws) < measured.regenerated(draws) else own


def check_inflation(inflation: float | None, dtype: torch.dtype) -> None:
    """Refuse a factor of the scale that is none, or none where rounding takes one.

    Raises:
        ValueError: it is below 1 or not finite, or None with vectors kept in float32.
    """
    if inflation is None and dtype != torch.float64:
        raise ValueError(
            f"inflation (F) must be given for vectors kept in {dtype}; got None. Rounding would void the "
            "guarantee without more noise: rounding_inflation of fedmf.factorization says how much."
        )
    if inflation is not None and not 1.0 <= inflation < math.inf:
        raise ValueError(f"inflation (F) must satisfy 1 <= F < inf; got {inflation}.")


def kept_bytes(rule: RowRule[Any], length: int, buffer_dtype: torch.dtype) -> int:
    """Bytes of the kept vectors; those that may not be rounded are float64."""
    return rule.vectors * length * (buffer_dtype if rule.roundable else torch.float64).itemsize


def digest_of(inverse: StreamingInverse, rounds: int, dtype: torch.dtype) -> str:
    """SHA-256 of horizon, coefficients and the type of kept vectors: equal digests mean equal rows."""
    state = hashlib.sha256(_DIGEST_LABEL + f"{rounds} {type(inverse).__name__} {dtype}".encode())
    for field in fields(inverse):  # type: ignore[arg-type]
        part = getattr(inverse, field.name)
        if isinstance(part, np.ndarray):
            kind = "<f8" if part.dtype.kind == "f" else "<i8"
            state.update(f"{field.name} {part.shape}\n".encode() + part.astype(kind).tobytes())
        else:
            state.update(f"{field.name} {part}\n".encode())
    return state.hexdigest()


@lru_cache(maxsize=8)
def measured_costs(device: str) -> Costs:
    """Both costs on a device, from the fastest of a few short runs with a public key; once per process."""
    source = GaussianSource(NoiseKey.from_seed(0), _ELEMENTS_ELSEWHERE, Domain.TRAINING)
    kernels = source.kernels(device)
    length = _ELEMENTS.get(torch.device(device).type, _ELEMENTS_ELSEWHERE)
    out = torch.zeros(length, dtype=torch.float64, device=device)
    ring = torch.zeros(9, length, dtype=torch.float64, device=device)
    few, many = (_fastest(kernels, out, ring, draws, 0) for draws in (1, 5))
    draw = max(many - few, 0.0) / 4
    few, many = (_fastest(kernels, out, ring, 1, reads) for reads in (0, 8))
    return Costs(draw / length, max(many - few, 0.0) / 8 / length)


def _fastest(kernels: NoiseKernels, out: torch.Tensor, ring: torch.Tensor, draws: int, reads: int) -> float:
    """Seconds of a row with that many draws and reads."""
    times = []
    for _ in range(_REPEATS + 1):  # the first may compile
        _wait(out.device)
        begin = time.perf_counter()
        kernels.feedback_(
            out, 0.0, 0, list(range(draws)), [1.0] * draws, ring, list(range(reads)), [0.5] * reads, 8
        )
        _wait(out.device)
        times.append(time.perf_counter() - begin)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fits(rule: RowRule[Any], length: int, buffer_dtype: torch.dtype, limit: int | None) -> bool:
    return limit is None or kept_bytes(rule, length, buffer_dtype) <= limit


def _too_large(rule: RowRule[Any], length: int, buffer_dtype: torch.dtype, limit: int | None) -> ValueError:
    return ValueError(
        f"memory_limit must be at least {kept_bytes(rule, length, buffer_dtype)} bytes for {rule.vectors} "
        f"kept vectors; got {limit}. Use fewer bands or a smaller shard."
    )
