from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
import pytest

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.mechanisms.registry import DesignRequest, build
from fedmf.mechanisms.strongly_convex import strongly_convex_lti
from fedmf.mechanisms.workload import parse_workload, prefix
from fedmf.participation import Participation

CONTRACT = Participation(120, 4, 30)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("bandmf", "banded-toeplitz"),
        ("dp-ftrl", "tree"),
        ("DP-SGD", "identity"),
        ("normalized_cgd", "normalized-cgd"),
    ],
)
def test_names_that_people_type_are_understood_and_written_as_ours(alias: str, name: str) -> None:
    contract = Participation(16, 2, 8)
    mechanism = build(alias, contract)
    wanted = build(name, contract)
    assert (mechanism.name, mechanism.params) == (wanted.name, wanted.params)
    assert mechanism.factorization.to_dict() == wanted.factorization.to_dict()
    assert NamedMechanism(alias).to_dict() == {"kind": name}


def test_bad_requests_are_rejected_by_name():
    for name, given, message in [
        ("normalised-cgd", {}, "Did you mean 'normalized-cgd'"),
        ("", {}, "must be a known one"),
        ("cgd", {"params": {"gamma": 0.5}}, "cgd takes: lambda; got gamma=0.5"),
        ("identity", {"params": {"lambda": 0.5}}, "identity takes: none"),
        ("identity", {"bands": 3}, "identity takes: none; got bands=3"),
        ("bifr", {"params": {"c": 1}}, "bifr takes: bands, gamma"),
        ("cgd", {"params": {"lambda": 1.0}}, r"lambda .* must be in \[0, 1\)"),
        ("bifr", {"params": {"gamma": 0}, "bands": 2}, "gamma"),
        ("nu-ftrl", {"params": {"nu": 2}}, "nu"),
        ("bsr", {"bands": 121}, "between 1 and n=120"),
        ("normalized-bsr", {"bands": 121}, "between 1 and n=120"),
        ("bsr", {"workload": prefix(7)}, "must have n=120 rounds"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            build(name, CONTRACT, **given)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "workload", "grids"),
    [
        ("cgd", "prefix", {"lambda": 1 - np.geomspace(1e-3, 1.0, 400)}),
        ("bifr", "prefix", {"bands": range(1, 121, 7), "gamma": np.linspace(0.3, 0.9, 61)}),
        (
            "normalized-one-parameter",
            "prefix",
            {"bands": (16, 30, 64), "c": np.linspace(0.0, 0.5, 61)},
        ),
        (
            "rated-bfr",
            "prefix*linear",
            {"gamma": np.linspace(0.3, 0.9, 31), "alpha": np.linspace(0.0, 1.0, 21)},
        ),
    ],
)
def test_searched_parameters_are_not_beaten_by_those_of_a_fine_grid(
    name: str, workload: str, grids: Mapping[str, Iterable[float]]
) -> None:
    A = parse_workload(workload, CONTRACT.rounds)
    request = DesignRequest(CONTRACT, A)
    searched = request.stated_error(build(name, CONTRACT, A).factorization)
    for values in product(*grids.values()):
        params = dict(zip(grids, values, strict=True))
        rival = request.stated_error(build(name, CONTRACT, A, params=params).factorization)
        assert searched <= rival * (1 + 1e-4), params


def test_noise_for_the_last_iterate_by_name_is_made_for_its_curvatures():
    contract = Participation(400, 1, 400)
    quadratic = build(
        "quadratic-lti", contract, params={"mu": 0.1, "smoothness": 2.0, "eigenvalues": 5}
    )
    assert quadratic.params == {"smoothness": 2.0, "eta": 0.25, "mu": 0.1, "eigenvalues": 5}
    spectrum = np.geomspace(0.1, 2.0, 5)
    direct = quadratic_lti(400, spectrum, 0.25)
    assert quadratic.factorization.to_dict() == direct.to_dict()
    params = build("quadratic-lti", contract).params
    assert params == {
        "smoothness": 1.0,
        "eta": 0.5,
        "mu": pytest.approx(12 / 400 / 0.5),
        "eigenvalues": 16,
    }

    def left(C):
        return quadratic_suboptimality(C, spectrum, 0.25) * sensitivity_of(C, contract).value ** 2

    for rival in ("identity", "nu-ftrl", "banded-toeplitz", "square-root"):
        assert left(direct) < 0.97 * left(build(rival, contract).factorization)
    convex = build("strongly-convex-lti", contract, params={"mu": 0.1, "lags": 2, "variance": 1.0})
    assert convex.params == {"smoothness": 1.0, "eta": 0.5, "mu": 0.1, "lags": 2, "variance": 1.0}
    direct = strongly_convex_lti(400, 0.1, 1.0, 0.5, lags=2, gradient_noise=1.0)
    assert convex.factorization.to_dict() == direct.to_dict()
