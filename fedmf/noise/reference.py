"""The noise source and its passes in plain NumPy: slow, and what every kernel is compared with.

Same bits from the same keystream, but NumPy's own log, cos and sin and no fused multiply-adds, so values
may differ from a kernel's in the last few bits (below 1e-14 for z).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.noise.key import Domain, NoiseKey, nonce, refinement_nonce
from fedmf.noise.row_pass import BLOCK_BYTES, NORMALS_PER_BLOCK, PAIRS_PER_BLOCK, REFINED_BELOW, RowPass
from fedmf.noise.schedule import KeySchedule


def uniforms(words: NDArray[np.uint32], refinement: NDArray[np.uint64]) -> NDArray[np.float64]:
    """u in (0, 1): (w + ½)·2⁻³², or for w < 2¹⁶ with 64 more bits, w·2⁻³² + (x + ½)·2⁻⁹⁶."""
    w = words.astype(np.float64)
    fine = w * 2.0**-32 + (refinement.astype(np.float64) + 0.5) * 2.0**-96
    return np.where(words < REFINED_BELOW, fine, (w + 0.5) * 2.0**-32)


def box_muller(
    u: NDArray[np.float64], angles: NDArray[np.uint32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(r cos φ, r sin φ) with r = √(−2 ln u) and φ = 2π(a + ½)·2⁻³², reduced to |φ| ≤ π/4 in integers."""
    quadrant = ((angles + np.uint32(1 << 29)) >> 30) & 3
    rest = (angles - (quadrant << 30)).view(np.int32)
    phi = (rest + 0.5) * (np.pi * 2.0**-31)
    cos, sin = np.cos(phi), np.sin(phi)
    r = np.sqrt(-2.0 * np.log(u))
    return (
        r * np.choose(quadrant, [cos, -sin, -cos, sin]),
        r * np.choose(quadrant, [sin, cos, -sin, -cos]),
    )


def normals(key: NoiseKey, domain: Domain, t: int, start: int, stop: int) -> NDArray[np.float64]:
    """z(t, start), …, z(t, stop − 1) as float64."""
    first, last = start // NORMALS_PER_BLOCK, -(-stop // NORMALS_PER_BLOCK)
    zeros = bytes(BLOCK_BYTES * (last - first))
    if not zeros:
        return np.empty(0)
    words = np.frombuffer(key.keystream(nonce(domain, t), first).update(zeros), "<u4").reshape(-1, 16)
    extra = np.frombuffer(key.keystream(refinement_nonce(domain, t), first).update(zeros), "<u8")
    u = uniforms(words[:, :PAIRS_PER_BLOCK], extra.reshape(-1, PAIRS_PER_BLOCK))
    z = np.concatenate(box_muller(u, words[:, PAIRS_PER_BLOCK:]), axis=1).reshape(-1)
    return z[start - first * NORMALS_PER_BLOCK :][: stop - start]


class ReferenceKernels:
    """`NoiseKernels` on CPU tensors, one NumPy expression per term.

    >>> out = torch.zeros(3, dtype=torch.float64)
    >>> key = NoiseKey.from_seed(0)
    >>> ReferenceKernels(key, Domain.TRAINING).add_(RowPass((7,), (2.0,)), out, 5)
    >>> bool((out.numpy() == 2 * normals(key, Domain.TRAINING, 7, 5, 8)).all())
    True
    """

    def __init__(self, keys: NoiseKey | KeySchedule, domain: Domain) -> None:
        self.keys = KeySchedule.of(keys)
        self.domain = domain

    def add_(self, row: RowPass, out: torch.Tensor, start: int, stored: torch.Tensor | None = None) -> None:
        """See `NoiseKernels.add_`."""
        row.check_fit(out, start, stored)
        vectors = out.new_empty(0, out.numel()) if stored is None else stored
        y = np.zeros(out.numel())
        for t, weight in zip(row.rounds, row.weights, strict=True):
            y = y + weight * normals(self.keys.key_of(t), self.domain, t, start, start + out.numel())
        for place, weight in zip(row.reads, row.read_weights, strict=True):
            y = y - weight * vectors[place].numpy()
        for place, decay in zip(row.writes, row.decays, strict=True):
            total = decay * vectors[place].numpy() + y if decay else y
            vectors[place] = torch.from_numpy(total)
        out.copy_(torch.from_numpy(out.to(torch.float64).numpy() + row.scale * y))

    def __repr__(self) -> str:
        return f"ReferenceKernels({self.keys.root!r}, {self.domain.name})"
