"""Both streams of a run, seen from outside, carry the noise that its statement promises,
independently.
"""

import itertools
import json
import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from scipy import stats
from support.ledgers import participants
from support.pair_runs import RecordedPair, pair_run
from support.small_runs import linear_task, run_small

from fedmf.ledger.ledger import Ledger
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment
from fedmf.noise.key import Domain
from fedmf.noise.noise_stream import NoiseStream

ROUNDS = 12
DIMENSION = 20_000
TASK = linear_task(24, DIMENSION)
FALSE_ALARM = 1e-6
KEYS = {"mechanism": "bsr", "bands": 4}
FORMS = ("per-user", "squared-mean")


def released_pair(path: Path, form: str, **keys: object) -> tuple[np.ndarray, np.ndarray]:
    """What a run released: means, shape (n, d), and second moments, shape (n, d)."""
    optimizer = RecordedPair(DiagonalMoment(DIMENSION), form)  # type: ignore[arg-type]
    run_small(path, pair_run(optimizer, TASK, **{**KEYS, **keys}))
    return optimizer.means(), optimizer.seconds()


def root(decay: float) -> np.ndarray:
    """LTT of the first four coefficients of (1 − βx)^{−1/2}."""
    c = list(itertools.accumulate(range(1, 4), lambda c, j: decay * c * (j - 0.5) / j, initial=1.0))
    return sum(value * np.eye(ROUNDS, k=-lag) for lag, value in enumerate(c))


def strategies(statement: dict) -> tuple[np.ndarray, np.ndarray]:
    """C₁ and C₂ as their names and parameters define them: "bsr" with four bands for prefix sums
    and decay ½.

    A run may find one matrix better for both; the parameters do not tell workloads apart, so the
    noise must.
    """
    assert statement["mechanism"] == statement["second_moment"]["mechanism"] == "bsr"
    assert statement["params"]["bands"] == statement["second_moment"]["params"]["bands"] == 4
    return root(1.0), root(0.5)


def rejects(noises: tuple[np.ndarray, np.ndarray], statement: dict) -> bool:
    """Whether the noises differ from τ₁²C₁⁻¹C₁⁻ᵀ/m² and τ₂²C₂⁻¹C₂⁻ᵀ/m², or depend on one another.

    Whitened they are 2n rows of d independent standard normals: sums of squares are χ²(d), the
    inner products of different rows N(0, d) up to O(1/d); all together by a union bound at false
    alarm 1e-6.
    """
    stds = statement["noise_std"], statement["second_moment"]["noise_std"]
    m = statement["users_per_round"]
    parts = [
        C @ noise * m / std
        for C, noise, std in zip(strategies(statement), noises, stds, strict=True)
    ]
    white = np.concatenate(parts)
    products = white @ white.T
    level = FALSE_ALARM / (ROUNDS * (2 * ROUNDS + 1))
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], DIMENSION)
    diagonal = np.diag(products)
    off = np.abs(products[np.triu_indices(2 * ROUNDS, 1)]) / math.sqrt(DIMENSION)
    return bool(
        (diagonal < low).any() or (diagonal > high).any() or (off > stats.norm.isf(level / 2)).any()
    )


@pytest.fixture(scope="module")
def twins(tmp_path_factory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder = tmp_path_factory.mktemp("twins")
    return {form: released_pair(folder / form, form, private=False) for form in FORMS}


def noise_of(  # type: ignore[no-untyped-def]
    released: tuple[np.ndarray, np.ndarray], twin: tuple[np.ndarray, np.ndarray]
):
    return released[0] - twin[0], released[1] - twin[1]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("form", FORMS)
def test_both_noises_are_what_the_statement_says(
    form: str, adjacency: str, twins, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    released = released_pair(tmp_path / "run", form, adjacency=adjacency)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["second_moment"]["form"] == form
    assert statement["second_moment"]["features"] == DIMENSION
    assert not rejects(noise_of(released, twins[form]), statement)


@pytest.mark.parametrize("form", FORMS)
def test_without_noise_the_second_moment_is_that_of_the_clipped_updates(
    form: str, tmp_path: Path
) -> None:
    task = linear_task(24, 9)
    optimizer = RecordedPair(BlockEnergies([2, 7]), form)  # type: ignore[arg-type]
    run_small(tmp_path / "run", pair_run(optimizer, task, **KEYS, private=False))
    x = task.dataset.features.double().numpy()
    x = -0.3 * x / np.linalg.norm(x, axis=1, keepdims=True)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        cohorts = [[int(user[1:]) for user in participants(ledger, t)] for t in range(ROUNDS)]
    for t, cohort in enumerate(cohorts):
        mean = x[cohort].sum(axis=0) / 6
        squares = np.sum(x[cohort] ** 2, axis=0) / 6 if form == "per-user" else mean**2
        np.testing.assert_allclose(optimizer.means()[t], mean, atol=1e-6)  # float32 updates
        np.testing.assert_allclose(
            optimizer.seconds()[t], [squares[:2].sum(), squares[2:].sum()], atol=1e-6
        )


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
@pytest.mark.parametrize("domain", [Domain.TRAINING, Domain.SECOND_MOMENT])
def test_noise_of_the_wrong_scale_is_rejected(
    factor: float, domain: Domain, twins, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    right = NoiseStream.__init__

    def wrong(self, keys, of, inverse, rounds, dimension, std):  # type: ignore[no-untyped-def]
        right(self, keys, of, inverse, rounds, dimension, std * (factor if of is domain else 1.0))

    monkeypatch.setattr(NoiseStream, "__init__", wrong)
    released = released_pair(tmp_path / "run", "per-user")
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert rejects(noise_of(released, twins["per-user"]), statement)


def reach(ratio: float) -> float:
    """max of ‖x − y‖² + ν‖x⊗x − y⊗y‖² over the unit disc, by brute force over lengths and the
    angle.
    """
    lengths = np.linspace(0, 1, 11)
    cosines = np.linspace(-1, 1, 401)
    a = lengths[:, None, None]
    b = lengths[None, :, None]
    c = cosines
    return float((a**2 + b**2 - 2 * a * b * c + ratio * (a**4 + b**4 - 2 * (a * b * c) ** 2)).max())


def worst_epsilon(statement: dict) -> float:
    """ε of the worst allowed pattern of one user: dense matrices, brute-force reach, stated noise
    levels.
    """
    C_1, C_2 = strategies(statement)
    zeta = statement["clip_norm"]
    second = statement["second_moment"]
    tau_1 = statement["noise_std"]
    tau_2 = second["noise_std"]
    k = statement["max_participations"]
    b = statement["min_separation"]
    mu = 0.0
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(ROUNDS), size):
            if any(later - earlier < b for earlier, later in itertools.pairwise(pattern)):
                continue
            p = np.sum(C_1[:, pattern].sum(axis=1) ** 2) * (zeta / tau_1) ** 2
            q = np.sum(C_2[:, pattern].sum(axis=1) ** 2)
            if second["form"] == "squared-mean":
                factor = 1 if statement["adjacency"] == "zero-out" else 2
                # ‖x̄ − ȳ‖ ≤ Δ = factor·ζ/m and ‖x̄⊗x̄ − ȳ⊗ȳ‖ ≤ 2ζΔ, in units of the noise per mean.
                square = factor**2 * (p + 4 * q * (zeta**2 / tau_2) ** 2)
            elif statement["adjacency"] == "zero-out":
                square = p + q * (zeta**2 / tau_2) ** 2
            else:
                square = p * reach(q * (zeta**2 / tau_2) ** 2 / p)
            mu = max(mu, math.sqrt(square))
    return dp_accounting.get_epsilon_gaussian(1 / mu, statement["delta"])


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("form", FORMS)
def test_the_stated_epsilon_is_that_of_the_worst_pattern(
    form: str, adjacency: str, tmp_path: Path
) -> None:
    """Every pattern enumerated; the bands are not longer than b, so that the bound is attained."""
    task = linear_task(24, 12)
    optimizer = RecordedPair(BlockEnergies([5, 7]), form)  # type: ignore[arg-type]
    run_small(tmp_path / "run", pair_run(optimizer, task, **KEYS, adjacency=adjacency))
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert worst_epsilon(statement) == pytest.approx(8.0, rel=1e-3)
    assert worst_epsilon(statement) <= 8.0 * (1 + 1e-6)
    assert statement["epsilon_spent"] <= statement["epsilon"]
