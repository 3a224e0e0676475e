"""Workloads."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.workload import ToeplitzWorkload, prefix


def test_prefix_releases_running_sums() -> None:
    values = np.random.default_rng(0).normal(size=7)
    np.testing.assert_allclose(prefix(7).materialize() @ values, np.cumsum(values), rtol=1e-13)
    assert prefix(7).rounds == 7
    assert prefix(7).name == "prefix"


def test_a_row_weighs_the_past_by_the_lag() -> None:
    a = np.array([1.0, -0.5, 0.25, 0.0])
    dense = ToeplitzWorkload("demo", a).materialize()
    for t in range(4):
        for i in range(4):
            assert dense[t, i] == (a[t - i] if i <= t else 0.0)


def test_coefficients_are_a_frozen_copy() -> None:
    mine = np.ones(3)
    workload = ToeplitzWorkload("demo", mine)
    mine[0] = 5.0
    assert workload.coefficients[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        workload.coefficients[0] = 2.0


@pytest.mark.parametrize(
    "coefficients", [[], [[1.0]], [0.0, 1.0], [1.0, np.nan], [np.inf], 3.0], ids=lambda value: repr(value)
)
def test_impossible_coefficients_are_refused(coefficients: object) -> None:
    with pytest.raises(
        ValueError, match="a \\(workload coefficients\\) must be a finite vector with a_0 != 0"
    ):
        ToeplitzWorkload("demo", np.array(coefficients))


@pytest.mark.parametrize("rounds", [0, -1])
def test_a_workload_needs_a_round(rounds: int) -> None:
    with pytest.raises(ValueError, match=f"n \\(rounds\\) must be at least 1; got {rounds}"):
        prefix(rounds)
