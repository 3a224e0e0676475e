"""The noise passes on NVIDIA GPUs: keystream, correlation and addition in one Triton kernel each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.row_pass import NORMALS_PER_BLOCK, Row, RowPass
from fedmf.noise.schedule import KeySchedule


class TritonKernels:
    """`NoiseKernels` for tensors on one GPU.

    Every element of `out`, of a ring buffer and of a state is read and written once per call (a state is read
    twice, the second time from cache), and no temporary vector is made. A thread computes one ChaCha20
    block, that is 16 elements, for each round. The first call of a pass for a dtype compiles for a second
    or so; later processes find the machine code in Triton's cache on disk, in which nothing of a key is.

    Args:
        keys: which key makes which row; a key alone makes all.
        domain: what the noise is for.
        device: a CUDA device.

    Raises:
        RuntimeError: Triton is not installed, or torch has no such device.

    Guarantees:
        The same float64 operations in the same order as the kernels on CPUs, fused where those are fused, on
        integers and IEEE numbers: the same bits in `out`, ring and state.
        No key is in `repr`. A launch hands the eight words of one key to the driver as arguments; where rows
        of several keys meet, those lie in a small array on the GPU, overwritten after the launch.
    """

    def __init__(self, keys: NoiseKey | KeySchedule, domain: Domain, device: torch.device) -> None:
        if find_spec("triton") is None:
            raise RuntimeError(
                "triton (compiler of the GPU kernels) must be installed for noise on a GPU; "
                "install the `triton` extra, or keep the noise on the CPU."
            )
        self.keys = KeySchedule.of(keys)
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

    def add_(self, row: RowPass, out: Row, start: int, stored: torch.Tensor | None = None) -> None:
        """See `NoiseKernels.add_`."""
        if not isinstance(out, torch.Tensor) or out.device != self.device:
            raise ValueError(
                f"out (vector) must be on {self.device}, where these kernels work; got {out.device}. "
                "No noise was added."
            )
        row.check_fit(out, start, stored)
        places = row.reads, row.read_weights, row.writes, row.decays
        keys = [self.keys.key(era) for era in self.keys.eras(row.rounds)]
        one = all(key is keys[0] for key in keys)
        secrets = b"" if one else b"".join(struct.pack("<8i", *key.secret_words()) for key in keys)
        table = self._table(row.rounds, row.weights, [], [row.scale], *places, secrets=secrets)
        counts = len(row.rounds), len(row.reads), len(row.writes)
        self._launch(out, out if stored is None else stored, start, keys[0] if one else None, table, counts)
        if not one:
            table.zero_()

    def _table(self, *columns: Sequence[float], secrets: bytes = b"") -> torch.Tensor:
        """Integers (even places) and floats (odd places), then keys, as an array of 64-bit words."""
        words = b"".join(
            struct.pack(f"<{len(column)}{'d' if place % 2 else 'Q'}", *column)
            for place, column in enumerate(columns)
        )
        host = torch.frombuffer(bytearray(words + secrets), dtype=torch.int64)
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def _launch(
        self,
        out: torch.Tensor,
        stored: torch.Tensor,
        start: int,
        key: NoiseKey | None,
        table: torch.Tensor,
        counts: tuple[int, int, int],
    ) -> None:
        import fedmf.noise.gpu_kernels as gpu_kernels

        kernel: Any = gpu_kernels.add_row

        if not out.numel():
            return
        counter, shift = divmod(start, NORMALS_PER_BLOCK)
        programs = -(-(shift + out.numel()) // (NORMALS_PER_BLOCK * gpu_kernels.BLOCKS))
        with torch.cuda.device_of(out):
            kernel[(programs,)](
                out, stored, out.numel(), shift, table, *counts, _signed(counter), int(self.domain),
                *([0] * 8 if key is None else key.secret_words()),
                BLOCKS=gpu_kernels.BLOCKS, MANY=key is None, **gpu_kernels.OPTIONS,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"TritonKernels({self.keys.root!r}, {self.domain.name}, device={str(self.device)!r})"


def _signed(word: int) -> int:
    """A 32-bit word as int32, so that the type Triton gives the argument does not depend on its value."""
    return word - (1 << 32) if word >> 31 else word
