"""Releases have the same bits on a GPU and on a processor, and a run may move between them."""

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
    "earlier innovations": {"mechanism": "bisr", "bands": 4},
    "earlier rows": {"mechanism": "banded-toeplitz", "bands": 4},
    "decaying sums": {"mechanism": "blt"},
    "block sums": {"mechanism": "tree"},
}


def released(form: str, path: Path, devices: list[str]) -> torch.Tensor:
    """Return u_t of all rounds, from sums that are the same everywhere.

    Each device releases its part of the rounds.
    """
    optimizer = RecordedPair(None)
    run = replace(small_run(TASK, **FORMS[form]), server=optimizer)
    rounds_of_device = ROUNDS // len(devices)
    with Session.start(path, run, device=devices[0]) as session:
        release_rounds(session, 0, rounds_of_device)
    for place, device in enumerate(devices[1:], start=1):
        with Session.resume(path, run, device=device) as session:
            release_rounds(session, place * rounds_of_device, (place + 1) * rounds_of_device)
    return torch.stack([release.mean.cpu() for release in optimizer.seen])


def release_rounds(session: Session, start: int, stop: int) -> None:
    """Release sums that depend on the round alone."""
    for t in range(start, stop):
        total = session.server.new_sum()
        numbers = torch.Generator().manual_seed(t)
        total.fixed_point.copy_(torch.randint(-(2**40), 2**40, (ENTRIES,), generator=numbers))
        session.server.release(total, [])


@needs_triton
@needs_gpu
@pytest.mark.parametrize("form", FORMS)
def test_a_release_on_a_gpu_has_the_bits_of_the_processor(tmp_path: Path, form: str) -> None:
    expected = released(form, tmp_path / "processor", ["cpu"])
    assert len(expected) == ROUNDS
    assert expected.any(dim=1).all()
    for name, devices in {"gpu": ["cuda"], "moved": ["cuda", "cpu", "cuda"]}.items():
        assert torch.equal(released(form, tmp_path / name, devices), expected), name
