from __future__ import annotations

import numpy as np
import pytest

from fedmf.factorization.algebra.search import minimize_on_interval
from fedmf.factorization.mechanisms.catalogue import accepted_parameters, build, names
from fedmf.factorization.objectives.error import errors
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation
from fedmf.workload.toeplitz import prefix

CONTRACT = Participation(120, 4, 30)


def _rmse(name, contract=CONTRACT, **given):
    C = build(name, contract, **given).factorization
    return errors(C, prefix(contract.rounds), stated_sensitivity(C, contract)).rmse


def test_names_are_the_contract():
    plain = {
        "identity", "square-root", "bsr", "bisr", "bifr", "bfr", "cgd", "nu-ftrl", "one-parameter",
        "shifted-root", "optimal-diagonal", "banded-toeplitz", "banded", "dense", "tree", "kary-tree",
        "banded-inverse", "blt",
    }  # fmt: skip
    assert set(names()) == plain | {f"normalized-{name}" for name in plain}


@pytest.mark.parametrize("name", names())
def test_params_rebuild_the_same_factorization(name):
    first = build(name, CONTRACT)
    again = build(name, CONTRACT, params=first.params)
    assert set(first.params) == set(accepted_parameters(name))
    assert again.params == first.params
    assert again.factorization.to_dict() == first.factorization.to_dict()


@pytest.mark.parametrize(
    ("name", "symbol", "grid"),
    [
        ("cgd", "lambda", np.linspace(0, 0.999, 400)),
        ("nu-ftrl", "nu", np.geomspace(1e-6, 1, 400)),
        ("bifr", "gamma", np.linspace(0.01, 1, 200)),
        ("bfr", "gamma", np.linspace(0.01, 1, 200)),
        ("one-parameter", "c", np.linspace(-0.5, 2, 600)),
        ("shifted-root", "c", np.linspace(-0.5, 4, 600)),
        ("normalized-cgd", "lambda", np.linspace(0, 0.999, 100)),
    ],
)
@pytest.mark.parametrize("contract", [CONTRACT, Participation(120, 120, 1), Participation(120, 1, 120)])
def test_free_parameters_beat_every_grid_point(name, symbol, grid, contract):
    bands = {} if symbol in {"lambda", "nu"} else {"bands": 16}
    best = _rmse(name, contract, **bands)
    # The search of normalised forms is coarser; that of signed coefficients uses a quicker bound.
    slack = 1e-3 if name.startswith("normalized-") or symbol == "c" else 1e-5
    for value in grid:
        assert best <= _rmse(name, contract, params={symbol: float(value)}, **bands) * (1 + slack), value


@pytest.mark.parametrize("name", ["bsr", "bisr", "bifr", "one-parameter", "normalized-bisr"])
def test_free_bands_beat_every_candidate(name):
    best = _rmse(name)
    for p in (1, 2, 4, 8, 16, 30, 32, 64):
        assert best <= _rmse(name, bands=p) * (1 + 1e-3)


def test_shift_of_either_sign_is_found():
    """Rare users want slowly falling coefficients; users in every round want C near the identity."""
    assert build("one-parameter", Participation(120, 4, 30), bands=16).params["c"] > 0.1
    assert build("one-parameter", Participation(120, 120, 1), bands=16).params["c"] < -0.05


@pytest.mark.parametrize(
    ("contract", "bands"),
    [(Participation(500, 1, 500), 64), (Participation(640, 10, 64), 64), (CONTRACT, 30)],
)
def test_the_shifted_root_is_the_best_family_of_one_parameter(contract, bands):
    found = _rmse("shifted-root", contract, bands=bands)
    assert found < 1.002 * _rmse("banded-toeplitz", contract, bands=bands)
    for rival in ("bsr", "one-parameter"):
        assert found < _rmse(rival, contract, bands=bands)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("bisrr", {}, "Did you mean 'bisr'"),
        ("normalised-cgd", {}, "Did you mean 'normalized-cgd'"),
        ("", {}, "must be a known one"),
        ("cgd", {"params": {"gamma": 0.5}}, "cgd takes: lambda; got gamma=0.5"),
        ("identity", {"params": {"lambda": 0.5}}, "identity takes: none"),
        ("identity", {"bands": 3}, "identity takes: none; got bands=3"),
        ("bifr", {"params": {"c": 1}}, "bifr takes: bands, gamma"),
        ("cgd", {"params": {"lambda": 1.0}}, r"lambda .* must be in \[0, 1\)"),
        ("cgd", {"params": {"lambda": float("nan")}}, "finite number"),
        ("cgd", {"params": {"lambda": "0.5"}}, "finite number"),
        ("bifr", {"params": {"gamma": 0}, "bands": 2}, "gamma"),
        ("nu-ftrl", {"params": {"nu": 2}}, "nu"),
        ("bsr", {"bands": 0}, "p .bands."),
        ("bsr", {"bands": 121}, "between 1 and n=120"),
        ("bsr", {"params": {"bands": 2.5}}, "integer"),
        ("normalized-bsr", {"bands": 121}, "between 1 and n=120"),
        ("bsr", {"workload": prefix(7)}, "must have n=120 rounds"),
    ],
)
def test_bad_requests_are_refused_by_name(name, given, message):
    with pytest.raises(ValueError, match=message) as refusal:
        build(name, CONTRACT, **given)
    assert "\n" not in str(refusal.value)


def test_smallest_horizon():
    for name in names():
        C = build(name, Participation(1, 1, 1)).factorization
        assert C.rounds == 1
        assert stated_sensitivity(C, Participation(1, 1, 1)).kind == "exact"


def test_line_search_finds_inner_and_end_minima():
    for target in (0.0, 0.123, 0.77, 1.0):
        x, value = minimize_on_interval(lambda x, at=target: abs(x - at), 0.0, 1.0)
        assert x == pytest.approx(target, abs=2e-4)
        assert value == abs(x - target)


def test_line_search_prefers_the_deeper_of_two_minima_and_skips_infinity():
    def objective(x: float) -> float:
        return float("inf") if x < 0.2 else min((x - 0.3) ** 2 + 0.1, (x - 0.8) ** 2)

    assert minimize_on_interval(objective, 0.0, 1.0)[0] == pytest.approx(0.8, abs=1e-3)
