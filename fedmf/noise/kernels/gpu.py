"""The noise passes on NVIDIA GPUs: keystream, correlation and addition in one Triton kernel each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import torch

from fedmf.noise.kernels.layout import NORMALS_PER_BLOCK, Domain
from fedmf.noise.kernels.protocol import check_feedback, check_state_space, check_sum, check_vector
from fedmf.noise.key import NoiseKey

__all__ = ["TritonKernels"]


class TritonKernels:
    """`NoiseKernels` for tensors on one GPU.

    Every element of `out`, of a ring buffer and of a state is read and written once per call (a state is read
    twice, the second time from cache), and no temporary vector is made. A thread computes one ChaCha20
    block, that is 16 elements, for each round. The first call of a pass for a dtype compiles for a second
    or so; later processes find the machine code in Triton's cache on disk, in which nothing of a key is.

    Args:
        key: the run's key.
        domain: what the noise is for.
        device: a CUDA device.

    Raises:
        RuntimeError: Triton is not installed, or torch has no such device.

    Guarantees:
        The same float64 operations in the same order as the kernels on CPUs, fused where those are fused, on
        integers and IEEE numbers: the same bits in `out`, ring and state.
        The key is not in `repr`. A launch hands its eight words to the driver as arguments.
    """

    def __init__(self, key: NoiseKey, domain: Domain, device: torch.device) -> None:
        if find_spec("triton") is None:
            raise RuntimeError(
                "triton (compiler of the GPU kernels) must be installed for noise on a GPU; "
                "install the `triton` extra, or keep the noise on the CPU."
            )
        self.key = key
        self.domain = Domain(domain)
        self.device = torch.device(device)
        self._check_device()

    def _check_device(self) -> None:
        if self.device.type != "cuda" or not torch.cuda.is_available():
            raise RuntimeError(
                f"device (of the noise) must be an available CUDA device; got {str(self.device)!r}, "
                f"torch.cuda.is_available() = {torch.cuda.is_available()}. Keep the noise on the CPU."
            )
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def accumulate_(
        self, out: torch.Tensor, start: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """See `NoiseKernels.accumulate_`."""
        self._check(out, start)
        check_sum(rounds, weights)
        table = self._table(rounds, weights)
        self._launch("accumulate", out, start, (_bits(out),), table, len(rounds))

    def feedback_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        rounds: Sequence[int],
        weights: Sequence[float],
        ring: torch.Tensor,
        slots: Sequence[int],
        ring_weights: Sequence[float],
        write_slot: int,
    ) -> None:
        """See `NoiseKernels.feedback_`."""
        self._check(out, start)
        check_sum(rounds, weights)
        check_feedback(out, scale, ring, slots, ring_weights, write_slot)
        table = self._table(rounds, weights, slots, ring_weights, [write_slot], [scale])
        tensors = (_bits(out), _bits(ring))
        self._launch("feedback", out, start, tensors, table, len(rounds), len(slots))

    def state_space_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        t: int,
        state: torch.Tensor,
        decays: Sequence[float],
        output_weights: Sequence[float],
    ) -> None:
        """See `NoiseKernels.state_space_`."""
        self._check(out, start)
        check_sum([t], [scale])
        check_state_space(out, scale, state, decays, output_weights)
        table = self._table([t], output_weights, [], decays, [], [scale])
        self._launch("state_space", out, start, (_bits(out), _bits(state)), table, len(decays))

    def _check(self, out: torch.Tensor, start: int) -> None:
        check_vector(out, start)
        if out.device != self.device:
            raise ValueError(
                f"out (vector) must be on {self.device}, where these kernels work; got {out.device}. "
                "No noise was added."
            )

    def _table(self, *columns: Sequence[float]) -> torch.Tensor:
        """Integers (even places) and floats (odd places) as one small device array of 64-bit words."""
        words = b"".join(
            struct.pack(f"<{len(column)}{'d' if place % 2 else 'Q'}", *column)
            for place, column in enumerate(columns)
        )
        host = torch.frombuffer(bytearray(words or 8), dtype=torch.int64)
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def _launch(
        self,
        name: str,
        out: torch.Tensor,
        start: int,
        tensors: tuple[torch.Tensor, ...],
        table: torch.Tensor,
        *counts: int,
    ) -> None:
        from fedmf.noise.kernels import gpu_kernels

        if not out.numel():
            return
        counter, shift = divmod(start, NORMALS_PER_BLOCK)
        programs = -(-(shift + out.numel()) // (NORMALS_PER_BLOCK * gpu_kernels.BLOCKS))
        with torch.cuda.device_of(out):
            getattr(gpu_kernels, name)[(programs,)](
                *tensors, out.numel(), shift, table, *counts, _signed(counter), int(self.domain),
                *self.key.secret_words().view(np.int32).tolist(),
                BLOCKS=gpu_kernels.BLOCKS, **gpu_kernels.OPTIONS,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"TritonKernels({self.key!r}, {self.domain.name}, device={str(self.device)!r})"


def _bits(values: torch.Tensor) -> torch.Tensor:
    """bfloat16 as int16: the kernels convert it themselves, rounding once."""
    return values.view(torch.int16) if values.dtype == torch.bfloat16 else values


def _signed(word: int) -> int:
    """A 32-bit word as int32, so that the type Triton gives the argument does not depend on its value."""
    return word - (1 << 32) if word >> 31 else word
