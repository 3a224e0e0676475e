"""The noise of private evaluations, seen from outside, is what the statement promises, and its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy import stats
from support.judged_tasks import ROUNDS, carry_out, judged_run, judged_task
from support.small_runs import client_for

import fedmf
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.noise import Domain
from fedmf.runs import PrivateEvaluation
from fedmf.runs.evaluation import evaluator as evaluator_module

METRICS, EVALUATIONS, SIZE, SHARE = 600, 6, 12, 0.2
TASK = judged_task(METRICS, dimension=METRICS + 1)
FALSE_ALARM = 1e-6
ASKED = PrivateEvaluation(every=2, size=SIZE, share=SHARE, mechanism="cgd", workload="exponential:0.9")
A = np.array([[0.9 ** (i - j) if i >= j else 0.0 for j in range(EVALUATIONS)] for i in range(EVALUATIONS)])


def noise_of(metrics: dict[int, dict[str, Any]]) -> np.ndarray:
    """The noise of the rows before they were averaged, in units of half a range, shape (E, metrics)."""
    names = [f"half{index}_private" for index in range(METRICS)]
    shown = np.array([[(metrics[t][name] - 0.5) / 0.5 for name in names] for t in range(2, ROUNDS + 1, 2)])
    return np.linalg.solve(A, A.sum(axis=1, keepdims=True) * shown)


def promised(statement: dict[str, Any]) -> tuple[np.ndarray, float]:
    """C_e of its name, and the standard deviation of z, from ε, δ, share and dense patterns alone."""
    evaluation = statement["evaluation"]
    decay = evaluation["params"]["lambda"]
    assert 0.1 < decay < 1
    C = np.where(A > 0, decay ** np.maximum(np.subtract.outer(*2 * [np.arange(EVALUATIONS)]), 0), 0.0)
    k, b = evaluation["max_participations"], evaluation["min_separation"]
    assert (k, b) == (3, 2)  # 12 of 24 users six times
    sensitivity = max(
        float(np.linalg.norm(C[:, list(range(start, EVALUATIONS, b))[:k]].sum(axis=1))) for start in range(b)
    )
    sigma = dp_accounting.get_sigma_gaussian(8.0, 1e-5) / math.sqrt(SHARE)
    return C, math.sqrt(METRICS + 1) * sigma * sensitivity


def rejects(noise: np.ndarray, C: np.ndarray, std: float) -> bool:
    """Whether rows differ from std²·C⁻¹C⁻ᵀ/m² at false alarm 1e-6: whitened, all squares add up to a χ², and
    products of different rows are N(0, q)."""
    white = C @ noise * SIZE / std
    products = white @ white.T
    level = FALSE_ALARM / (1 + EVALUATIONS * (EVALUATIONS - 1) // 2)
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], white.size)
    off = np.abs(products[np.triu_indices(EVALUATIONS, 1)]) / math.sqrt(METRICS)
    return bool(not low <= np.trace(products) <= high or (off > stats.norm.isf(level / 2)).any())


@pytest.fixture(scope="module", params=["zero-out", "replace-one"])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("noise") / "run"
    metrics = carry_out(path, judged_run(TASK, ASKED, adjacency=request.param, noise_seed=3))
    return metrics, json.loads((path / "statement.json").read_text())


def test_covariance_is_that_of_the_statement(released) -> None:  # type: ignore[no-untyped-def]
    metrics, statement = released
    noise, (C, std) = noise_of(metrics), promised(statement)
    std *= {"zero-out": 1, "replace-one": 2}[statement["adjacency"]]
    assert not rejects(noise, C, std)
    assert rejects(1.1 * noise, C, std)
    assert rejects(noise / 1.1, C, std)
    assert rejects(noise, np.eye(EVALUATIONS), std)
    rows = A / A.sum(axis=1, keepdims=True) @ np.linalg.inv(C)
    for e, t in enumerate(range(2, ROUNDS + 1, 2)):
        expected = 0.5 * np.linalg.norm(rows[e]) * std / SIZE
        assert metrics[t]["half0_private_std"] == pytest.approx(expected, rel=1e-8)
        assert metrics[t]["loss_private_std"] == pytest.approx(expected / 0.5 * 2.5, rel=1e-8)


def with_training(path: Path, share: float, **keys: Any) -> tuple[np.ndarray, np.ndarray]:
    """Increments of the models, shape (n, d), and the noise of the evaluations."""
    models: dict[int, np.ndarray] = {}
    asked = PrivateEvaluation(every=1, size=SIZE, share=share)
    run = judged_run(TASK, asked, server_momentum=0.0, server_learning_rate=1.0, mechanism="identity", **keys)
    with fedmf.start(run, path) as session:

        def note(report: object, row: object) -> None:
            models[session.server.t] = session.server.parameters.numpy().copy()

        models[0] = session.server.parameters.numpy().copy()
        run_on_grid(session, InProcessGrid(client_for(session)), note)
        names = [f"half{index}_private" for index in range(METRICS)]
        metrics = session.metrics
        judged = np.array([[metrics[t][name] - 0.5 for name in names] for t in range(1, ROUNDS + 1)])
    stacked = np.stack([models[t] for t in range(ROUNDS + 1)]).astype(np.float64)
    return np.diff(stacked, axis=0), judged


def correlation(path: Path) -> float:
    """The largest normalised product of a row of training noise and one of evaluation noise, N(0, 1) if they
    are independent.

    Two runs of the same updates with other shares differ by training noise alone.
    """
    one, judged = with_training(path / "one", 0.2, noise_seed=9)
    other, _ = with_training(path / "other", 0.7, noise_seed=9)
    trained = (one - other)[:, 1 : METRICS + 1]  # the entries that the same z would enter
    assert np.abs(trained).max() > 0
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (trained, judged)]
    return float(np.abs(unit[0] @ unit[1].T).max() * math.sqrt(METRICS))


LIMIT = stats.norm.isf(FALSE_ALARM / 2 / ROUNDS**2)


def test_it_is_independent_of_the_noise_of_training(tmp_path: Path) -> None:
    assert correlation(tmp_path) < LIMIT


def test_one_domain_for_both_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared:
        EVALUATION = Domain.TRAINING

    monkeypatch.setattr(evaluator_module, "Domain", Shared)
    assert correlation(tmp_path) > 2 * LIMIT


def test_domains_share_no_keystream() -> None:
    assert len({member.value for member in Domain}) == len(Domain)
