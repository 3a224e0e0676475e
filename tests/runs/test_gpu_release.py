"""What is released has the same bits on a GPU and on a processor, and a run may move between
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.pair_runs import RecordedPair
from support.small_runs import linear_task, small_run
from support.triton_worker import needs_gpu, needs_triton

from fedmf.runs.session import Session

ROUNDS = 12
ENTRIES = 3001
TASK = linear_task(24, ENTRIES)
FORMS = {
    "no noise": {"private": False},
    "independent": {"mechanism": "identity"},
    "drawn again": {"mechanism": "bisr", "bands": 4},
    "kept outputs": {"mechanism": "banded-toeplitz", "bands": 4},
    "decaying sums": {"mechanism": "blt"},
    "block sums": {"mechanism": "tree"},
}


def released(form: str, path: Path, devices: list[str]) -> list[torch.Tensor]:
    """u_t of all rounds, a part of them on each device, from sums that are the same everywhere."""
    optimizer = RecordedPair(None)
    run = replace(small_run(TASK, **FORMS[form]), server=optimizer)
    each = ROUNDS // len(devices)
    for place, device in enumerate(devices):
        with (Session.resume if place else Session.start)(path, run, device=device) as session:
            for t in range(place * each, (place + 1) * each):
                total = session.server.new_sum()
                numbers = torch.Generator().manual_seed(t)
                total.fixed_point.copy_(
                    torch.randint(-(2**40), 2**40, (ENTRIES,), generator=numbers)
                )
                session.server.release(total, [])
    return [release.mean.cpu() for release in optimizer.seen]


@needs_triton
@needs_gpu
@pytest.mark.parametrize("form", FORMS)
def test_a_release_on_a_gpu_has_the_bits_of_the_processor(tmp_path: Path, form: str) -> None:
    expected = released(form, tmp_path / "processor", ["cpu"])
    assert all(mean.any() for mean in expected)
    for name, devices in {"gpu": ["cuda"], "moved": ["cuda", "cpu", "cuda"]}.items():
        found = released(form, tmp_path / name, devices)
        assert len(found) == ROUNDS
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), name
