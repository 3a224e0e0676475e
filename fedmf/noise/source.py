"""z(t, i): standard normal variables as a keyed function of round and element."""

from __future__ import annotations

import torch

from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.row_pass import MAX_DIMENSION, NoiseKernels, RowPass
from fedmf.noise.schedule import KeySchedule


class GaussianSource:
    """Independent N(0, 1) variables z(t, i) for rounds t and elements 0 ≤ i < d, with random access.

    Bits come from ChaCha20, laid out as `fedmf.noise.row_pass` says: 32 bits per variable, 64 more for
    the rare ones in the tail. Box–Muller in float64 turns them into pairs:

        u = (w_k + ½)·2⁻³²   (if w_k < 2¹⁶: w_k·2⁻³² + (x + ½)·2⁻⁹⁶ with x from the refinement stream),
        φ = 2π(w_{8+k} + ½)·2⁻³²,   r = √(−2 ln u),
        z(t, 16c + k) = r·cos φ,   z(t, 16c + 8 + k) = r·sin φ,   k = 0 … 7.

    So |z| reaches √(2·97·ln 2) = 11.6, and z is never 0.

    Args:
        keys: which key makes which row; a key alone makes all.
        dimension: d, 1 ≤ d < 2³⁶.
        domain: separates uses of one key.

    Raises:
        ValueError: d or the domain is out of range.

    Guarantees:
        z(t, i) depends on (key of t, domain, t, i) only: not on d, nor on how a vector is cut into requests,
        nor on the order of requests, nor on the number of threads, nor on the processor, to the last bit.
        Different (domain, t, ⌊i/16⌋) use different keystream blocks, in both streams.
        Calls from several threads are safe.

    References:
        Nir and Langley (2018), RFC 8439, sections 2.3-2.4. Box and Muller (1958), "A Note on the
        Generation of Random Normal Deviates".

    >>> source = GaussianSource(NoiseKey.from_seed(0), dimension=20)
    >>> whole = source.block(3, 0, 20)
    >>> torch.equal(torch.cat([source.block(3, 0, 7), source.block(3, 7, 20)]), whole)
    True
    """

    def __init__(
        self, keys: NoiseKey | KeySchedule, dimension: int, domain: Domain = Domain.TRAINING
    ) -> None:
        if (
            isinstance(dimension, bool)
            or not isinstance(dimension, int)
            or not 1 <= dimension <= MAX_DIMENSION
        ):
            raise ValueError(
                f"d (dimension) must be an integer with 1 <= d < 2^36; got {dimension!r}. "
                "A longer vector would exhaust the block counter of one round."
            )
        try:
            self.domain = Domain(domain)
        except ValueError:
            known = ", ".join(f"{member.name}={member.value}" for member in Domain)
            raise ValueError(f"domain (use of the noise) must be one of {known}; got {domain!r}.") from None
        self.keys = KeySchedule.of(keys)
        self.dimension = dimension
        self._kernels: dict[torch.device, NoiseKernels] = {}

    @property
    def key(self) -> NoiseKey:
        """The root of the keys."""
        return self.keys.root

    def block(self, t: int, start: int, stop: int) -> torch.Tensor:
        """The variables z(t, start), …, z(t, stop − 1).

        Args:
            t: round, 0 ≤ t < 2⁶⁴.
            start: first element.
            stop: one past the last element, 0 ≤ start ≤ stop ≤ d.

        Returns:
            A new float64 tensor of shape (stop − start,) on the CPU.

        Raises:
            ValueError: t, start or stop out of range.
        """
        if not 0 <= t < 2**64:
            raise ValueError(f"t (round) must satisfy 0 <= t < 2^64; got {t}.")
        if not 0 <= start <= stop <= self.dimension:
            raise ValueError(
                f"start, stop (elements) must satisfy 0 <= start <= stop <= d = {self.dimension}; "
                f"got {start}, {stop}."
            )
        out = torch.zeros(stop - start, dtype=torch.float64)
        self.kernels("cpu").add_(RowPass((t,), (1.0,)), out, start)
        return out

    def kernels(self, device: torch.device | str) -> NoiseKernels:
        """The passes over vectors of noise on a device; compiled at their first use and made once.

        Raises:
            ValueError: no kernels for such a device.
        """
        place = torch.device(device)
        if place not in self._kernels:
            self._kernels[place] = self._compiled_for(place)
        return self._kernels[place]

    def _compiled_for(self, place: torch.device) -> NoiseKernels:
        if place.type == "cpu":
            from fedmf.noise.cpu import CpuKernels

            return CpuKernels(self.keys, self.domain)
        if place.type == "cuda":
            from fedmf.noise.gpu import TritonKernels

            return TritonKernels(self.keys, self.domain, place)
        raise ValueError(f"device (of the noise) must be a CPU or a CUDA GPU; got {place}.")

    def __repr__(self) -> str:
        return f"GaussianSource({self.key!r}, dimension={self.dimension}, domain={self.domain.name})"
