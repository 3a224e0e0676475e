"""Kept vectors: the same bits however they come about."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from fedmf.mechanisms.blt import BufferedToeplitz
from fedmf.mechanisms.matrix import normalized
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.toeplitz import InverseToeplitz, Toeplitz
from fedmf.mechanisms.trees import tree
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows import row_rules
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation

ROUNDS, DIMENSION = 16, 300

FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.375], ROUNDS),
    "normalised bands": normalized(Toeplitz([2.0, 1.0, 0.75], ROUNDS)),
    "general bands": build("banded", Participation(ROUNDS, 2, 8), bands=4).factorization,
    "blt": BufferedToeplitz([0.95, 0.6], [0.2, 0.3], ROUNDS),
}


def stream(C, d=DIMENSION, seed=5, **options):
    return NoiseStream(GaussianSource(NoiseKey.from_seed(seed), d), C.recurrence(), C.rounds, **options)


def rows(noise: NoiseStream, count: int, dtype=torch.float64) -> torch.Tensor:
    made = torch.zeros(count, noise.stop - noise.start, dtype=dtype)
    for row in made:
        noise.add_(row, 1.0)
    return made


def keep_past_z(monkeypatch) -> None:
    """However few draws it saves."""
    monkeypatch.setattr(row_rules, "_WORTH_DRAWS", -math.inf)


@pytest.mark.parametrize(("q", "dtype"), [(2, torch.float64), (9, torch.float32), (ROUNDS, torch.bfloat16)])
def test_past_z_kept_or_drawn_again_give_the_same_bits(q, dtype, monkeypatch):
    C = normalized(InverseToeplitz((-0.7) ** np.arange(q), ROUNDS))
    drawn = stream(C)
    keep_past_z(monkeypatch)
    kept = stream(C)
    assert (kept.memory_vectors, drawn.memory_vectors) == (q - 1, 0)
    assert kept.digest == drawn.digest
    assert torch.equal(rows(kept, ROUNDS, dtype), rows(drawn, ROUNDS, dtype))
    for t in (5, 3, 0, 11):
        kept.seek(t)
        drawn.seek(t)
        assert torch.equal(rows(kept, 2), rows(drawn, 2))


@pytest.mark.parametrize("form", [*FORMS, "tree", "inverse"])
@pytest.mark.parametrize("whole", [True, False])
def test_kept_vectors_move_to_another_layout_without_replay(form, whole, monkeypatch):
    others = {"tree": tree(ROUNDS), "inverse": InverseToeplitz([1.0, -0.5, 0.25], ROUNDS)}
    C = {**FORMS, **others}[form]
    keep_past_z(monkeypatch)
    shard = {} if whole else {"start": 40, "stop": 200}
    noise = stream(C, **shard)
    rows(noise, 7)
    state = noise.state_dict(kept_vectors=True)
    assert set(state) == {"t", "key", "domain", "dimension", "digest", "eras", "kept", "start", "stop"}
    json.dumps(noise.state_dict())
    expected = rows(stream(C), ROUNDS)[7:, 50:90]
    resumed = stream(C, start=50, stop=90)
    resumed.load_state(state)
    rule, replayed = type(resumed._rule), []
    real = rule.row_
    monkeypatch.setattr(rule, "row_", lambda self, *args: (replayed.append(args[-2]), real(self, *args))[1])
    assert torch.equal(rows(resumed, ROUNDS - 7), expected)
    assert replayed == list(range(7, ROUNDS)), "rounds before the saved one must not be made again"
    outside = stream(C, start=0, stop=90)
    outside.load_state(state)
    assert torch.equal(rows(outside, ROUNDS - 7)[:, 50:], expected)


def test_kept_vectors_of_another_shape_or_type_are_refused():
    noise = stream(FORMS["bands"])
    rows(noise, 3)
    state = noise.state_dict(kept_vectors=True)
    for kept in (state["kept"][:1], state["kept"].float(), state["kept"][:, 1:]):
        with pytest.raises(ValueError, match=r"^kept \(vectors of the saved noise\) must be float64"):
            stream(FORMS["bands"]).load_state({**state, "kept": kept})
