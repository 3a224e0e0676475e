from __future__ import annotations

import numpy as np
import pytest

from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.mechanisms.registry import Form, build, families, least_on, names, own_name, parameters
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.strongly_convex import strongly_convex_lti
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

CONTRACT = Participation(120, 4, 30)


def _rmse(name, contract=CONTRACT, **given):
    C = build(name, contract, **given).factorization
    return errors(C, prefix(contract.rounds), stated_sensitivity(C, contract)).rmse


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("bandmf", "banded-toeplitz"),
        ("BandMF", "banded-toeplitz"),
        ("banded_toeplitz", "banded-toeplitz"),
        ("dp-ftrl", "tree"),
        ("DP-SGD", "identity"),
        ("normalized_cgd", "normalized-cgd"),
    ],
)
def test_names_that_people_type_are_understood_and_written_as_ours(said: str, meant: str) -> None:
    contract = Participation(16, 2, 8)
    made, wanted = build(said, contract), build(meant, contract)
    assert (made.name, made.params) == (wanted.name, wanted.params)
    assert made.factorization.to_dict() == wanted.factorization.to_dict()
    assert NamedMechanism(said).to_dict() == {"kind": meant}


def test_no_name_of_others_is_one_of_ours_or_of_two_mechanisms() -> None:
    others = [name for family in families() for name in family.also]
    assert len(set(others)) == len(others) > 5
    assert not set(others) & set(names())
    assert all(own_name(name) == name for name in names())


@pytest.mark.weekly
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


def test_bad_requests_are_refused_by_name():
    for name, given, message in [
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
    ]:
        with pytest.raises(ValueError, match=message) as refusal:
            build(name, CONTRACT, **given)
        assert "\n" not in str(refusal.value)


def test_smallest_horizon():
    for name in names():
        mechanism = build(name, Participation(1, 1, 1))
        C = mechanism.factorization
        assert C.rounds == 1
        assert build(name, Participation(1, 1, 1), params=mechanism.params).params == mechanism.params
        assert stated_sensitivity(C, Participation(1, 1, 1)).kind == "exact"


def test_line_search_prefers_the_deeper_of_two_minima_and_skips_infinity():
    def objective(x: float) -> float:
        return float("inf") if x < 0.2 else min((x - 0.3) ** 2 + 0.1, (x - 0.8) ** 2)

    assert least_on(objective, 0.0, 1.0, 17, 1e-4) == pytest.approx(0.8, abs=1e-3)


def test_every_parameter_has_one_meaning_and_its_takers():
    known = parameters()
    for family in families():
        assert family.meaning
        assert family.name in names()
        for parameter in (part.parameter for part in (*family.free, *family.options)):
            assert known[parameter.symbol].meaning == parameter.meaning
    for symbol, parameter in known.items():
        assert parameter.symbol == symbol
        assert parameter.meaning
    real = {"alpha", "gamma", "lambda", "nu", "c", "eta", "mu", "smoothness", "variance"}
    assert {symbol for symbol, parameter in known.items() if not parameter.integer} == real


def test_limits_fall_from_names_to_comparisons_and_to_normalised_forms():
    for family in families():
        plain, columns = family.plain, Form(family, True)
        assert plain.largest_compared <= plain.largest
        assert columns.largest <= plain.largest
        assert columns.largest_compared <= plain.largest_compared
        for form in (plain, columns):
            n = form.largest + 1
            with pytest.raises(ValueError, match=rf"at most {form.largest}( for {form.name})?; got {n}"):
                build(form.name, Participation(n, 1, n))


def test_noise_for_the_last_iterate_by_name_is_made_for_its_curvatures():
    contract = Participation(400, 1, 400)
    quadratic = build("quadratic-lti", contract, params={"mu": 0.1, "smoothness": 2.0, "eigenvalues": 5})
    assert quadratic.params == {"smoothness": 2.0, "eta": 0.25, "mu": 0.1, "eigenvalues": 5}
    spectrum = np.geomspace(0.1, 2.0, 5)
    direct = quadratic_lti(400, spectrum, 0.25)
    assert quadratic.factorization.to_dict() == direct.to_dict()
    free = build("quadratic-lti", contract).params
    assert free == {"smoothness": 1.0, "eta": 0.5, "mu": pytest.approx(12 / 400 / 0.5), "eigenvalues": 16}

    def left(C):
        return quadratic_suboptimality(C, spectrum, 0.25) * stated_sensitivity(C, contract).value ** 2

    for rival in ("identity", "nu-ftrl", "banded-toeplitz", "square-root"):
        assert left(direct) < 0.97 * left(build(rival, contract).factorization)
    convex = build("strongly-convex-lti", contract, params={"mu": 0.1, "lags": 2, "variance": 1.0})
    assert convex.params == {"smoothness": 1.0, "eta": 0.5, "mu": 0.1, "lags": 2, "variance": 1.0}
    direct = strongly_convex_lti(400, 0.1, 1.0, 0.5, lags=2, gradient_noise=1.0)
    assert convex.factorization.to_dict() == direct.to_dict()
