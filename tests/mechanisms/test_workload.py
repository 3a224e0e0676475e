"""Workloads."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.mechanisms.workload import ToeplitzWorkload, momentum, parse_workload, weighted


def test_a_row_weighs_the_past_by_the_lag() -> None:
    a = np.array([1.0, -0.5, 0.25, 0.0])
    dense = ToeplitzWorkload("demo", a).materialize()
    for t in range(4):
        for i in range(4):
            assert dense[t, i] == (a[t - i] if i <= t else 0.0)


def _by_recursion(beta: float, alpha: float, rounds: int) -> np.ndarray:
    """SGD with momentum and weight decay, run on unit impulses."""
    dense = np.zeros((rounds, rounds))
    for i in range(rounds):
        velocity = theta = 0.0
        for t in range(rounds):
            velocity = beta * velocity + (t == i)
            theta = alpha * theta + velocity
            dense[t, i] = theta
    return dense


@pytest.mark.parametrize(
    ("text", "dense"),
    [
        ("prefix", np.tril(np.ones((9, 9)))),
        ("average", np.tril(np.ones((9, 9))) / np.arange(1, 10)[:, None]),
        ("exponential:0.7", _by_recursion(0.7, 0.0, 9)),
        ("window:3", (np.tril(np.ones((9, 9))) - np.tril(np.ones((9, 9)), -3)) / 3),
        ("window:9", np.tril(np.ones((9, 9))) / 9),
        ("momentum:0.9", _by_recursion(0.9, 1.0, 9)),
        ("momentum:0", np.tril(np.ones((9, 9)))),
        ("momentum:0.9:0.99", _by_recursion(0.9, 0.99, 9)),
        ("momentum:0.9:0.9", _by_recursion(0.9, 0.9, 9)),
    ],
)
def test_command_line_names(text: str, dense: np.ndarray) -> None:
    workload = parse_workload(text, 9)
    assert workload.name == text
    np.testing.assert_allclose(workload.materialize(), dense, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(workload.column_squares(), (dense**2).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        workload.leading(4).materialize(), dense[:4, :4], rtol=1e-13, atol=1e-15
    )


def test_unreadable_names_are_rejected_on_one_line() -> None:
    for text, message in [
        ("median", "must be one of prefix, exponential"),
        ("", "must be one of prefix"),
        ("prefix:3", "Count the values of prefix"),
        ("momentum", "Count the values of momentum"),
        ("momentum:0.9:0.9:1", "Count the values"),
        ("momentum:fast", "a number after momentum:"),
        ("window:2.5", "an integer after window:"),
        ("window:0", "between 1 and n=9"),
        ("window:10", "between 1 and n=9"),
        ("exponential:1", r"beta \(decay\) must be in \(0, 1\)"),
        ("exponential:nan", "beta"),
        ("momentum:1", r"beta \(momentum\) must be in \[0, 1\)"),
        ("momentum:0.5:1.01", "alpha"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            parse_workload(text, 9)
        assert "\n" not in str(raised.value)


def test_weights_scale_rows_and_columns() -> None:
    rows = np.arange(6.0)
    columns = np.linspace(1.0, 0.1, 6)
    scaled = weighted(weighted(momentum(0.5, 6), rows=rows), columns=columns)
    dense = rows[:, None] * momentum(0.5, 6).materialize() * columns
    np.testing.assert_allclose(scaled.materialize(), dense, rtol=1e-14)
    np.testing.assert_allclose(
        scaled.column_squares(), (dense**2).sum(axis=0), rtol=1e-12, atol=1e-15
    )
    twice = weighted(scaled, rows=np.full(6, 2.0))
    np.testing.assert_allclose(twice.materialize(), 2 * dense, rtol=1e-14)
