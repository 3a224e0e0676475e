"""Kept vectors: the same bits however they come about. Rounded ones: see test_noise_rounding."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.toeplitz import InverseToeplitz, Toeplitz, normalized
from fedmf.factorization.matrices.trees import kary_tree, tree
from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.streaming.recurrence import Recurrence
from fedmf.factorization.streaming.rounded_storage import rounding_inflation
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.costs import measured_costs
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.rows.storage import NoiseStorage
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation
from fedmf.values import by_kind, value_of

ROUNDS, DIMENSION = 16, 300
ROUNDED = {"storage": NoiseStorage(dtype="float32"), "inflation": 1.0}

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


@pytest.mark.parametrize(("q", "dtype"), [(2, torch.float64), (9, torch.float32), (ROUNDS, torch.bfloat16)])
def test_past_z_kept_or_drawn_again_give_the_same_bits(q, dtype):
    C = normalized(InverseToeplitz((-0.7) ** np.arange(q), ROUNDS))
    kept, drawn = stream(C, storage=NoiseStorage("buffer")), stream(C, storage=NoiseStorage("regenerate"))
    assert (kept.memory_vectors, drawn.memory_vectors) == (q - 1, 0)
    assert kept.digest == drawn.digest
    assert torch.equal(rows(kept, ROUNDS, dtype), rows(drawn, ROUNDS, dtype))
    for t in (5, 3, 0, 11):
        kept.seek(t)
        drawn.seek(t)
        assert torch.equal(rows(kept, 2), rows(drawn, 2))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("t", [0, 7])
def test_narrow_buffers_are_replayed_exactly(form, t):
    expected = rows(stream(FORMS[form], **ROUNDED), ROUNDS)
    noise = stream(FORMS[form], **ROUNDED)
    noise.seek(t)
    assert torch.equal(rows(noise, 2), expected[t : t + 2])
    noise.skip()
    assert torch.equal(rows(noise, ROUNDS - t - 3), expected[t + 3 :])
    assert noise.memory_bytes == noise.memory_vectors * DIMENSION * 4
    assert not torch.equal(expected, rows(stream(FORMS[form]), ROUNDS)), "nothing was rounded"


@pytest.mark.parametrize("form", [*FORMS, "tree", "inverse"])
@pytest.mark.parametrize("whole", [True, False])
def test_kept_vectors_move_to_another_layout_without_replay(form, whole, monkeypatch):
    others = {"tree": tree(ROUNDS), "inverse": InverseToeplitz([1.0, -0.5, 0.25], ROUNDS)}
    C, storage = {**FORMS, **others}[form], NoiseStorage("buffer")
    shard = {} if whole else {"start": 40, "stop": 200}
    noise = stream(C, storage=storage, **shard)
    rows(noise, 7)
    state = noise.state_dict(kept_vectors=True)
    assert set(state) == {"t", "key", "domain", "dimension", "digest", "eras", "kept", "start", "stop"}
    json.dumps(noise.state_dict())
    expected = rows(stream(C), ROUNDS)[7:, 50:90]
    resumed = stream(C, storage=storage, start=50, stop=90)
    resumed.load_state(state)
    rule, replayed = type(resumed._rule), []
    real = rule.row_
    monkeypatch.setattr(rule, "row_", lambda self, *args: (replayed.append(args[-2]), real(self, *args))[1])
    assert torch.equal(rows(resumed, ROUNDS - 7), expected)
    assert replayed == list(range(7, ROUNDS)), "rounds before the saved one must not be made again"
    outside = stream(C, storage=storage, start=0, stop=90)
    outside.load_state(state)
    assert torch.equal(rows(outside, ROUNDS - 7)[:, 50:], expected)


def test_kept_vectors_of_another_shape_or_type_are_refused():
    noise = stream(FORMS["bands"])
    rows(noise, 3)
    state = noise.state_dict(kept_vectors=True)
    for kept in (state["kept"][:1], state["kept"].float(), state["kept"][:, 1:]):
        with pytest.raises(ValueError, match=r"^kept \(vectors of the saved noise\) must be torch.float64"):
            stream(FORMS["bands"]).load_state({**state, "kept": kept})


def test_noise_of_another_buffer_type_is_other_noise():
    state = stream(FORMS["bands"], **ROUNDED).state_dict()
    with pytest.raises(ValueError, match="digest"):
        stream(FORMS["bands"]).load_state(state)


@pytest.mark.parametrize("C", [tree(ROUNDS), kary_tree(2, ROUNDS), InverseToeplitz([1.0, -0.5], ROUNDS)])
def test_what_is_not_an_output_is_never_narrowed(C):
    noise = stream(C, storage=NoiseStorage(dtype="float32"))
    assert noise.inflation == 1.0
    assert noise.memory_bytes == noise.memory_vectors * DIMENSION * 8
    assert torch.equal(rows(noise, ROUNDS), rows(stream(C), ROUNDS))


def test_outputs_of_a_form_that_the_proof_leaves_out_are_never_narrowed():
    """Several z and several outputs a row: `rounding_shift` has no bound for it."""
    inverse = Recurrence(np.array([1.0, -0.3]), np.array([0.5]), np.ones(ROUNDS))
    source = GaussianSource(NoiseKey.from_seed(5), DIMENSION)
    noise = NoiseStream(source, inverse, ROUNDS, storage=NoiseStorage(dtype="float32"))
    assert noise.memory_bytes == DIMENSION * 8
    assert torch.equal(rows(noise, ROUNDS), rows(NoiseStream(source, inverse, ROUNDS), ROUNDS))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "bfloat16"}, r"^dtype .* must be 'float64' or 'float32'; got 'bfloat16', whose rounding"),
        ({"dtype": "float16"}, r"^dtype .* must be 'float64' or 'float32'; got 'float16'\.$"),
        ({"dtype": torch.float32}, r"^dtype .* got torch.float32\.$"),
        ({"policy": "disk"}, "^policy must be"),
        ({"memory_limit": -1}, r"^memory_limit \(bytes\) must be an integer of at least 0, or None; got -1"),
        ({"memory_limit": 1.5}, r"^memory_limit \(bytes\) must be an integer of at least 0"),
        ({"memory_limit": True}, r"^memory_limit \(bytes\) must be an integer of at least 0"),
    ],
)
def test_storage_that_does_not_exist_cannot_be_asked_for(fields, message):
    with pytest.raises(ValueError, match=message):
        NoiseStorage(**fields)


def test_storage_is_a_value_that_is_written_and_read_back():
    storage = NoiseStorage("buffer", "float32", 4096)
    assert value_of(by_kind(NoiseStorage), json.loads(json.dumps(storage.to_dict()))) == storage


def test_the_factor_of_a_storage_is_the_proved_one_where_vectors_are_rounded():
    contract, d, sigma = Participation(ROUNDS, 2, 8), 1000, 1.5
    narrow = NoiseStorage(dtype="float32")
    for C in FORMS.values():
        inverse = C.recurrence()
        factor = narrow.inflation(inverse, contract, d, sigma)
        assert factor == rounding_inflation(inverse, contract, d, sigma) > 1.0
        assert NoiseStorage(dtype="float32", memory_limit=0).inflation(inverse, contract, d, sigma) == factor
        assert NoiseStorage().inflation(inverse, contract, d, sigma) == 1.0
        assert NoiseStorage("regenerate", "float32").inflation(inverse, contract, d, sigma) == 1.0
        stream(C, storage=NoiseStorage("regenerate", "float32"))
    for C in (tree(ROUNDS), kary_tree(2, ROUNDS), InverseToeplitz([1.0, -0.5], ROUNDS)):
        assert narrow.inflation(C.recurrence(), contract, d, sigma) == 1.0


@pytest.mark.parametrize("inflation", [0.999, float("inf"), float("nan")])
def test_a_factor_that_is_none_is_refused(inflation):
    with pytest.raises(ValueError, match=r"^inflation \(F\) must satisfy 1 <= F < inf; got"):
        stream(FORMS["bands"], inflation=inflation)


def test_float32_is_refused_without_a_factor():
    for form in FORMS.values():
        with pytest.raises(
            ValueError, match=r"^inflation \(F\) must be given for vectors stored in torch.float32"
        ):
            stream(form, storage=NoiseStorage(dtype="float32"))


def test_the_factor_multiplies_every_scale():
    plain, more = stream(FORMS["blt"]), stream(FORMS["blt"], inflation=1.25)
    assert (plain.inflation, more.inflation) == (1.0, 1.25)
    np.testing.assert_allclose(rows(more, ROUNDS), 1.25 * rows(plain, ROUNDS), rtol=1e-14)


def test_costs_are_measured_once_and_positive():
    costs = measured_costs("cpu")
    assert costs is measured_costs("cpu")
    assert costs.draw > 0
    assert costs.read >= 0
