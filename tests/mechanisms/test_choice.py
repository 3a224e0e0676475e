"""A mechanism chosen by name with parameters, or given as a factorization of one's own."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import oracles

from fedmf.matrices.banded import Banded
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense, Factorization, Stamped, normalized
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Diagonal, InverseToeplitz, Toeplitz
from fedmf.mechanisms.choice import GivenFactorization, NamedMechanism, mechanism_choice_from_dict
from fedmf.mechanisms.registry import accepted_parameters, build
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.mechanisms.workload import parse_workload, prefix
from fedmf.participation import Participation

CONTRACT = Participation(12, 3, 4)
GIVEN: list[Factorization] = [
    Toeplitz([1.0, 0.5, -0.25], 12),
    InverseToeplitz([2.0, -1.0 / 3.0], 12),
    Diagonal(np.geomspace(1.0, 3.0, 12)),
    normalized(Toeplitz([1.0, 0.3], 12)),
    BufferedToeplitz([0.9, 0.3], [0.2, 0.1], 12),
    Banded(np.array([[1.0, 0.2]] * 11 + [[1.0, 0.0]])),
    Stamped(Toeplitz([1.0, 0.1], 4), 12),
    Dense(np.tril(np.full((12, 12), 0.1)) + np.eye(12)),
    tree(12),
    kary_tree(3, 12),
]


@pytest.mark.parametrize("name", ["identity", "bifr", "blt", "tree", "dense", "normalized-banded"])
def test_a_named_choice_builds_what_build_builds_and_survives_json(name):
    named = NamedMechanism(name)
    assert [parameter.symbol for parameter in named.searched] == accepted_parameters(name)
    mechanism = named.build(CONTRACT)
    fixed = named.with_parameters(mechanism.params)
    assert fixed.searched == ()
    for choice in (named, fixed):
        again = mechanism_choice_from_dict(json.loads(json.dumps(choice.to_dict())))
        assert again == choice == pickle.loads(pickle.dumps(choice))
        assert hash(again) == hash(choice)
        rebuilt = again.build(CONTRACT, prefix(12))
        assert rebuilt.params == mechanism.params
        assert rebuilt.factorization.to_dict() == mechanism.factorization.to_dict()
    assert build(name, CONTRACT, params=mechanism.params).params == fixed.params


@pytest.mark.parametrize("C", GIVEN, ids=lambda C: type(C).__name__)
def test_a_given_factorization_is_stored_exactly_and_judged_by_its_coefficients(C):
    choice = GivenFactorization(C, "mine")
    again = mechanism_choice_from_dict(json.loads(json.dumps(choice.to_dict())))
    for stored in (choice, again):
        mechanism = stored.build(CONTRACT, parse_workload("momentum:0.9", 12))
        assert (mechanism.name, mechanism.params, stored.searched) == ("mine", {}, ())
        assert mechanism.factorization.to_dict() == C.to_dict()
        assert (mechanism.factorization.materialize() == C.materialize()).all()
        stated = sensitivity_of(mechanism.factorization, CONTRACT)
        truth = oracles.scalar_sensitivity(C.materialize(), 3, 4)
        assert stated.value >= truth * (1 - 1e-11)
        assert stated.kind == "upper_bound" or stated.value == pytest.approx(truth, rel=1e-11)
    assert choice.with_parameters({}) is choice
    with pytest.raises(ValueError, match="mine takes none; got bands=3"):
        choice.with_parameters({"bands": 3})


class _Boasting(Toeplitz):
    """Says of itself that a user moves nothing, and that rows are ten times as noisy."""

    def gram_diagonal(self, gap: int) -> np.ndarray:
        return np.zeros(self.rounds - gap)

    def noise_row_variances(self) -> np.ndarray:
        return 100.0 * super().noise_row_variances()


class _Forgetful(Toeplitz):
    def to_dict(self) -> dict[str, Any]:
        return {"type": "toeplitz", "rounds": self.rounds, "coefficients": [1.0, 0.5]}


class _Longer(Toeplitz):
    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "rounds": self.rounds + 1}


class _Unknown(Toeplitz):
    def to_dict(self) -> dict[str, Any]:
        return {"type": "mine", "secret": 3}


class _Broken(Toeplitz):
    def to_dict(self) -> dict[str, Any]:
        raise RuntimeError("two\nlines")


@dataclass
class _Described:
    rounds: int = 12


def test_an_object_is_never_trusted_beyond_its_coefficients():
    boasting = _Boasting([1.0, 0.5], 12)
    assert sensitivity_of(boasting, Participation(12, 1, 12)).value == 0.0
    stored = GivenFactorization(boasting).build(CONTRACT).factorization
    assert type(stored) is Toeplitz
    honest = Toeplitz([1.0, 0.5], 12)
    assert sensitivity_of(stored, CONTRACT) == sensitivity_of(honest, CONTRACT)
    assert (stored.noise_row_variances() == honest.noise_row_variances()).all()


@pytest.mark.parametrize(
    ("C", "message"),
    [
        (_Unknown([1.0], 12), r"one that its to_dict describes; got _Unknown: ValueError \(type"),
        (_Broken([1.0], 12), r"got _Broken: RuntimeError \(two lines\)"),
        (_Longer([1.0], 12), "describes exactly; got _Longer"),
        (_Described(), "must be a Factorization; got _Described"),
        (np.eye(12), "must be a Factorization; got ndarray"),
    ],
)
def test_what_cannot_be_stored_is_rejected_in_one_line(C, message):
    with pytest.raises(ValueError, match=message) as raised:
        GivenFactorization(C)
    assert "\n" not in str(raised.value)


def test_what_is_described_is_what_runs():
    """The coefficients an object writes count, even where it holds others."""
    stored = GivenFactorization(_Forgetful([1.0, 0.9, 0.8], 12)).factorization
    assert stored.to_dict() == Toeplitz([1.0, 0.5], 12).to_dict()


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kind": 3},
        {"kind": "given"},
        {"kind": "given", "name": "mine", "factorization": [1.0]},
        {"kind": "given", "name": "mine", "factorization": GIVEN[0].to_dict(), "bands": 3},
        {"kind": "given", "name": "mine", "factorization": {"type": "mine"}},
        {"kind": "bisr", "gamma": 0.5},
        {"kind": "bisr", "bands": None},
    ],
)
def test_descriptions_that_describe_no_choice_are_rejected(description):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the messages differ
        mechanism_choice_from_dict(description)
    assert "\n" not in str(raised.value)
