"""Correlated noise over several processes: every rank makes its own shard, and the noise needs no messages.

    torchrun --nproc-per-node 2 simulations/noise/sharded.py --dimension 1000000 --rounds 5

Ranks with a GPU each use NCCL, others gloo; the group is used to share the key's seed and to print, never for
noise. In a real run every rank loads the run's key file. With --save PATH each rank writes its shard's sum
of noisy rounds to PATH.<rank>.pt, and their concatenation is, bit for bit, what a single process makes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

from fedmf.factorization.mechanisms.catalogue import build
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation


def shard_of(rank: int, world: int, dimension: int) -> tuple[int, int]:
    """Elements [start, stop) of a rank: any contiguous cut will do, aligned or not."""
    return dimension * rank // world, dimension * (rank + 1) // world


def noisy_sum(
    mechanism: str, rounds: int, dimension: int, seed: int, rank: int, world: int, device: torch.device
) -> torch.Tensor:
    """The sum of all rounds' noise on one rank's shard, float32."""
    factorization = build(mechanism, Participation(rounds, 1, rounds)).factorization
    source = GaussianSource(NoiseKey.from_seed(seed), dimension)  # d is that of the whole vector
    start, stop = shard_of(rank, world, dimension)
    noise = NoiseStream(source, factorization.recurrence(), rounds, start, stop)
    total = torch.zeros(stop - start, device=device)
    for _ in range(rounds):
        noise.add_(total, scale=1.0)
    return total


def main() -> None:
    """Parse, make the shard, report its size and the variance of its elements over all ranks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mechanism", default="blt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    seed = torch.tensor([given.seed], device=device)
    dist.broadcast(seed, 0)
    part = noisy_sum(given.mechanism, given.rounds, given.dimension, int(seed.item()), rank, world, device)
    if given.save is not None:
        torch.save(part.cpu(), f"{given.save}.{rank}.pt")
    square = part.double().square().sum().reshape(1)
    dist.all_reduce(square)
    if rank == 0:
        print(f"{world} ranks, {given.dimension} elements: variance {square.item() / given.dimension:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
