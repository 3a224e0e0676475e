"""Whole runs whose noise counts on secret cohorts: what is added, what is stated, what is refused.

The oracle shares no code with the accountants: it lists every pattern of rounds that a user can
have, with its probability from the definition of the sampling, and averages (1 − e^(ε − L))₊ over
draws of the mixture.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from support.amplified_runs import ACCOUNTANTS, BINS, COHORT, DELTA, EPSILON, ROUNDS, USERS, keys
from support.ledgers import participations
from support.small_runs import Recorder, client_for, linear_task, run_small, small_run

import fedmf
from fedmf.accounting import sampling
from fedmf.accounting.rounding import at_least
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.runs.loop import RoundRecord
from fedmf.runs.session import Session

DIMENSION = 20_000
TASK = linear_task(USERS, DIMENSION)
# A normal deviate exceeds it with probability 2e-9.
Z = 6.0


def strategy() -> np.ndarray:
    """The banded square root: 1, 1/2, 3/8, 5/16."""
    column = np.array([1.0, 1 / 2, 3 / 8, 5 / 16])
    bands = [np.diag(np.full(ROUNDS - j, c), -j) for j, c in enumerate(column)]
    return sum(bands)  # type: ignore[return-value]


def patterns(accountant: str) -> list[tuple[tuple[int, ...], float]]:
    """Every pattern of rounds of one user with its probability; of the first group for cyclic
    Poisson.
    """
    rate = COHORT[accountant] / USERS
    turns = [tuple(range(start, ROUNDS, BINS)) for start in range(BINS)]
    if accountant == "balls-in-bins":
        return [(turn, 1 / BINS) for turn in turns]
    if accountant == "cyclic-poisson":
        q = rate * BINS
        chosen = itertools.chain.from_iterable(
            itertools.combinations(turns[0], i) for i in range(4)
        )
        return [(rounds, q ** len(rounds) * (1 - q) ** (3 - len(rounds))) for rounds in chosen]
    q = rate / (1 - rate * (BINS - 1))
    found: list[tuple[tuple[int, ...], float]] = []

    def follow(t: int, rounds: tuple[int, ...], weight: float) -> None:
        if t >= ROUNDS:
            found.append((rounds, weight))
            return
        follow(t + 1, rounds, weight * (1 - q))
        follow(t + BINS, (*rounds, t), weight * q)

    # In the stationary state a user rests for 1, 2 or 3 more rounds with probability m/U each.
    follow(0, (), 1 - rate * (BINS - 1))
    for rest in range(1, BINS):
        follow(rest, (), rate)
    return found


def delta_of(
    accountant: str, noise: float, epsilon: float = EPSILON, draws: int = 200_000
) -> tuple[float, float]:
    """δ(noise, ε) of taking a user away, and its standard error; plain sampling."""
    listed = patterns(accountant)
    weights = np.array([weight for _, weight in listed])
    assert weights.sum() == pytest.approx(1.0)
    indicator = np.zeros((len(listed), ROUNDS))
    for row, (rounds, _) in zip(indicator, listed, strict=True):
        row[list(rounds)] = 1.0
    means = indicator @ strategy().T
    rng = np.random.default_rng(11)
    values = []
    for _ in range(draws // 20_000):
        y = means[rng.choice(len(listed), 20_000, p=weights)] + noise * rng.standard_normal(
            (20_000, ROUNDS)
        )
        exponents = y @ means.T / noise**2 - (means**2).sum(axis=1) / (2 * noise**2)
        losses = logsumexp(exponents, b=weights, axis=1)
        values.append(np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
    sample = np.concatenate(values)
    return float(sample.mean()), float(sample.std() / np.sqrt(sample.size))


def increments(path: Path, **changes: object) -> np.ndarray:
    """Released model differences, shape (n, d), as clients and the final model show them."""
    recorder = Recorder()
    run = small_run(TASK, server_momentum=0.0, server_learning_rate=1.0, **changes)
    final = run_small(path, run, lambda session: client_for(session, recorder))
    models = [recorder.models[t] for t in range(ROUNDS) if t in recorder.models]
    assert len(models) == ROUNDS, "this seed leaves a round without users; choose another"
    return np.diff(np.stack([*models, final]).astype(np.float64), axis=0)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_noise_that_is_added_gives_the_amplified_guarantee(
    accountant: str, tmp_path: Path
) -> None:
    """Measured from released models: δ of the sampler's own patterns is met, and met tightly."""
    values = keys(accountant, noise_seed=9)  # no round of it is empty, so clients see every model
    twin = increments(
        tmp_path / "twin",
        **keys(accountant, noise_seed=9, private=False, epsilon=None, amplified=None),
    )
    noise = increments(tmp_path / "run", **values) - twin
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    white = strategy() @ noise * statement["users_per_round"] / statement["clip_norm"]
    measured = float(np.sqrt((white**2).mean()))
    share = measured * statement["clip_norm"] / statement["noise_std"]
    assert abs(share - 1) < Z / np.sqrt(2 * white.size)
    delta, error = delta_of(accountant, measured)
    assert delta - Z * error < DELTA
    # Limits, reserved β and the coarse grid of the search cost at most an eighth of δ.
    assert delta + Z * error > 0.875 * DELTA
    less, error = delta_of(accountant, 0.9 * measured)
    assert less - Z * error > DELTA
    unamplified = fedmf.plan(small_run(**keys(accountant, amplified=False)))
    assert statement["noise_std"] < 0.95 * unamplified.noise_std


@pytest.fixture(scope="module", params=ACCOUNTANTS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "run"
    run_small(path, small_run(**keys(request.param)))
    return path


def test_the_statement_gives_both_guarantees_and_what_they_need(finished: Path) -> None:
    found = json.loads((finished / "statement.json").read_text())
    text = (finished / "statement.txt").read_text()
    used = found["amplification"]
    assert found["epsilon"] == EPSILON
    assert found["epsilon_known_cohorts"] > 1.05 * EPSILON
    assert found["epsilon_spent"] <= found["epsilon_known_cohorts"]
    guarantee, *_ = text.splitlines()
    known = at_least(found["epsilon_known_cohorts"])
    assert guarantee.endswith(
        "against anyone who sees all that was released but not who took part in which round; "
        f"epsilon {known} against those who see that too."
    )
    assert any("stay secret" in assumption for assumption in found["assumptions"])
    assert any("who took part in which round" in secret for secret in found["secret"])
    assert "amplification by" in found["sampling"]
    assert found["sampling"] in text
    expected = {"cyclic-poisson": 0.5, "balls-in-bins": 0.25, "b-min-sep": 0.2}[used["accountant"]]
    assert used["probability"] == pytest.approx(expected, rel=1e-12)
    assert used["method"] in text
    assert 0 < used["delta_limit"] <= DELTA - used["failure"]
    exact = used["accountant"] == "cyclic-poisson"
    assert (used["failure"] == 0.0) is exact
    assert (used["seed"] is None) is exact


@pytest.mark.parametrize("accountant", ["b-min-sep"])
def test_a_stopped_run_states_what_it_spent_so_far_and_resumes_without_calibrating_again(
    accountant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(**keys(accountant, noise_seed=-1))

    class Stop(Exception):
        pass

    def stop(record: RoundRecord) -> None:
        if record.rounds == 3:
            raise Stop

    with Session.start(tmp_path / "run", run) as session:
        schedule = session.cohort_schedule()
        planned = [schedule.cohort(t).tolist() for t in range(ROUNDS)]
        std = session.plan.noise_std
        with pytest.raises(Stop):
            run_on_grid(session, InProcessGrid(client_for(session)), stop)
        so_far = session.statement().to_dict()["epsilon_so_far"]
        assert 0 < so_far <= EPSILON
        assert so_far == min(session.plan.known_epsilon_after(3), EPSILON)

    def refuse(*_: object) -> None:
        raise AssertionError("a resumed run must keep its noise")

    monkeypatch.setattr(sampling, "amplified_run", refuse)
    with Session.resume(tmp_path / "run", run) as session:
        assert session.plan.noise_std == std
        run_on_grid(session, InProcessGrid(client_for(session)))
        ids = session.task.dataset.user_ids
        joined = sorted(participations(session.directory.ledger))
    assert joined == sorted((t, ids[u]) for t, cohort in enumerate(planned) for u in cohort)
