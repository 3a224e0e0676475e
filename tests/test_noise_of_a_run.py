"""The noise of a whole run, seen from outside, is the noise its privacy statement promises.

A run and its noise-free twin train a task whose updates do not depend on the model, so their released
models differ by the noise alone. What is compared with the statement is only what clients were sent and
what statement.json says; C is rebuilt here from its definition.
"""

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats
from support.small_runs import Recorder, client_for, linear_task, run_small, small_run

from fedmf.runs import session as session_module

ROUNDS, DIMENSION = 12, 20_000
TASK = linear_task(24, DIMENSION)
FALSE_ALARM = 1e-6


def increments(path: Path, **keys: object) -> np.ndarray:
    """Released model differences θ_{t+1} − θ_t, shape (n, d), as clients saw them."""
    recorder = Recorder()
    run = small_run(TASK, server_momentum=0.0, server_learning_rate=1.0, **keys)
    final = run_small(path, run, lambda s: client_for(s, recorder))
    models = [recorder.models[t] for t in range(ROUNDS)] + [final]
    return np.diff(np.stack(models).astype(np.float64), axis=0)


def toeplitz(column: np.ndarray) -> np.ndarray:
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])


def power_series(exponent: float) -> np.ndarray:
    """Coefficients of (1 − x)^exponent."""
    return np.array(
        list(itertools.accumulate(range(1, ROUNDS), lambda c, j: c * (j - 1 - exponent) / j, initial=1.0))
    )


def strategy_matrix(mechanism: str, params: dict[str, float]) -> np.ndarray:
    """C from its definition."""
    if mechanism.startswith("normalized-"):
        base = strategy_matrix(mechanism.removeprefix("normalized-"), params)
        return base / np.linalg.norm(base, axis=0)
    bands = int(params.get("bands", ROUNDS))
    kept = np.arange(ROUNDS) < bands
    return {
        "identity": lambda: np.eye(ROUNDS),
        "square-root": lambda: toeplitz(power_series(-0.5)),
        "bsr": lambda: toeplitz(power_series(-0.5) * kept),
        "bisr": lambda: np.linalg.inv(toeplitz(power_series(0.5) * kept)),
        "cgd": lambda: toeplitz(params["lambda"] ** np.arange(ROUNDS)),
        "optimal-diagonal": lambda: np.diag((ROUNDS - np.arange(ROUNDS)) ** 0.25),
    }[mechanism]()


def rejects(noise: np.ndarray, statement: dict) -> bool:
    """Whether the noise rows, shape (n, d), differ from C⁻¹C⁻ᵀ(ζσ·sens)²/m² at false alarm 1e-6.

    Whitened by C they must be independent standard normals: the n sums of squares are χ²(d), and the
    off-diagonal inner products N(0, d) up to O(1/d), tested together with a union bound.
    """
    c = strategy_matrix(statement["mechanism"], statement["params"])
    std = statement["clip_norm"] * statement["noise_multiplier"] * statement["sensitivity"]
    white = c @ noise * statement["cohort_size"] / std
    products = white @ white.T
    tests = ROUNDS * (ROUNDS + 1) // 2
    level = FALSE_ALARM / tests
    diagonal = np.diag(products)
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], DIMENSION)
    off = np.abs(products[np.triu_indices(ROUNDS, 1)]) / math.sqrt(DIMENSION)
    return bool((diagonal < low).any() or (diagonal > high).any() or (off > stats.norm.isf(level / 2)).any())


def worst_epsilon(noise: np.ndarray, statement: dict) -> float:
    """ε of the worst allowed pattern against Gaussian noise of the measured covariance, by enumeration."""
    covariance = noise @ noise.T / DIMENSION
    precision = np.linalg.inv(covariance)
    k, b = statement["max_participations"], statement["min_separation"]
    shift = statement["clip_norm"] / statement["cohort_size"]
    mu = 0.0
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(ROUNDS), size):
            if all(later - earlier >= b for earlier, later in itertools.pairwise(pattern)):
                direction = np.zeros(ROUNDS)
                direction[list(pattern)] = shift
                mu = max(mu, math.sqrt(direction @ precision @ direction))
    return dp_accounting.get_epsilon_gaussian(1 / mu, statement["delta"])


@pytest.fixture(scope="module")
def twin(tmp_path_factory) -> np.ndarray:
    return increments(tmp_path_factory.mktemp("twin") / "run", private=False, mechanism="identity")


MECHANISMS = [
    {"mechanism": "identity"},
    {"mechanism": "bsr", "bands": 4},
    {"mechanism": "bisr", "bands": 4},
    {"mechanism": "normalized-cgd", "lambda": 0.8},
    {"mechanism": "optimal-diagonal"},
]


@pytest.mark.parametrize("keys", MECHANISMS, ids=lambda keys: keys["mechanism"])
def test_the_noise_of_a_run_is_what_its_statement_says(keys: dict, twin: np.ndarray, tmp_path: Path) -> None:
    noise = increments(tmp_path / "run", **keys) - twin
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["sensitivity_kind"] == "exact"
    assert not rejects(noise, statement)
    # The entries of the measured covariance are right to √(2/d) = 1 %, which ε follows.
    assert worst_epsilon(noise, statement) == pytest.approx(statement["epsilon_planned"], rel=0.05)
    assert statement["epsilon_planned"] == pytest.approx(8.0, rel=1e-6)
    assert statement["epsilon_realised"] <= statement["epsilon_planned"]


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
def test_a_run_with_noise_of_the_wrong_scale_is_rejected(
    factor: float, twin: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(session_module.PrivateServer):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            for _, stream in self._noise.blocks():
                stream.add_ = partial(scaled, stream.add_)  # type: ignore[method-assign]

    def scaled(add: Callable[[torch.Tensor, float], None], out: torch.Tensor, scale: float) -> None:
        add(out, scale * factor)

    monkeypatch.setattr(session_module, "PrivateServer", Wrong)
    noise = increments(tmp_path / "run", mechanism="bisr", bands=4) - twin
    assert rejects(noise, json.loads((tmp_path / "run" / "statement.json").read_text()))


def test_replace_one_doubles_the_noise(twin: np.ndarray, tmp_path: Path) -> None:
    noise = increments(tmp_path / "run", mechanism="bsr", bands=4, adjacency="replace-one") - twin
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert rejects(noise, statement)
    assert not rejects(noise, {**statement, "sensitivity": 2 * statement["sensitivity"]})


def test_noise_keys_from_the_operating_system_differ(twin: np.ndarray, tmp_path: Path) -> None:
    first, second = (increments(tmp_path / name, mechanism="identity", noise_seed=-1) - twin for name in "ab")
    correlation = np.sum(first * second) / np.sqrt(np.sum(first**2) * np.sum(second**2))
    assert abs(correlation) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(first.size)
