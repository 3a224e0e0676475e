"""Any shard made alone is the slice of the whole, bit for bit: by property, and over two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flower_network import free_ports

from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.toeplitz import InverseToeplitz, Toeplitz
from fedmf.factorization.matrices.trees import kary_tree, tree
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.rows.storage import NoiseStorage
from fedmf.noise.source import GaussianSource

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "simulations" / "noise" / "sharded.py"
ROUNDS, DIMENSION = 6, 1 << 12

FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.25], ROUNDS),
    "inverse": InverseToeplitz([1.0, -0.5, -0.25], ROUNDS),
    "blt": BufferedToeplitz([0.9, 0.5], [0.3, 0.2], ROUNDS),
    "tree": tree(ROUNDS),
    "kary": kary_tree(2, ROUNDS),
}


def made(form, start, stop, **options) -> torch.Tensor:
    source = GaussianSource(NoiseKey.from_seed(8), DIMENSION)
    noise = NoiseStream(source, FORMS[form].recurrence(), ROUNDS, start, stop, inflation=1.0, **options)
    rows = torch.zeros(ROUNDS, stop - start)
    for row in rows:
        noise.add_(row, 0.7)
    return rows


@lru_cache(maxsize=64)
def whole(form, policy, dtype) -> torch.Tensor:
    return made(form, 0, DIMENSION, storage=NoiseStorage(policy, dtype))


@pytest.mark.parametrize(
    ("form", "policy", "dtype"),
    [
        *((form, "auto", "float64") for form in FORMS),
        *((form, "regenerate", "float64") for form in ("bands", "blt", "tree")),
        ("inverse", "buffer", "float64"),
        *((form, "auto", "float32") for form in ("bands", "blt")),
    ],
)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.tuples(st.integers(0, DIMENSION), st.integers(0, DIMENSION)).filter(lambda cut: cut[0] != cut[1]))
def test_every_shard_is_the_slice_of_the_whole(form, policy, dtype, cut):
    start, stop = sorted(cut)
    shard = made(form, start, stop, storage=NoiseStorage(policy, dtype))
    assert torch.equal(shard, whole(form, policy, dtype)[:, start:stop])


def test_two_processes_make_the_vector_of_one(tmp_path):
    """A gloo group of two runs the documented example; neither rank sends noise to the other."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from sharded import noisy_sum
    finally:
        sys.path.pop(0)
    mechanism, rounds, dimension, seed = "blt", 5, 10_001, 3
    (port,) = free_ports(1)
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    arguments = [
        *("--mechanism", mechanism, "--rounds", str(rounds), "--dimension", str(dimension)),
        *("--seed", str(seed), "--save", str(tmp_path / "part")),
    ]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=600) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], printed
    assert printed[0][0].startswith("2 ranks, 10001 elements: variance")
    parts = [torch.load(tmp_path / f"part.{rank}.pt", weights_only=True) for rank in range(2)]
    assert [part.numel() for part in parts] == [5000, 5001]
    alone = noisy_sum(mechanism, rounds, dimension, seed, 0, 1, torch.device("cpu"))
    assert torch.equal(torch.cat(parts), alone)
