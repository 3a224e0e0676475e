"""ε of training and private evaluation together, against dense matrices, every pattern and every sign."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from numpy.typing import NDArray
from support.headers import DELTA, make_header
from support.ledgers import begin

from fedmf.accounting import UserLevel
from fedmf.cohorts import BallsInBinsCohorts
from fedmf.errors import LedgerError
from fedmf.factorization import (
    Factorization,
    InverseToeplitz,
    Mechanism,
    Toeplitz,
    stated_sensitivity,
)
from fedmf.participation import Participation
from fedmf.parts import EvaluationPlan, joint_multiplier, shared_multipliers
from fedmf.records import Ledger
from fedmf.statements import RunHeader, build_statement, user_privacy

N = 6
CONTRACT = Participation(N, 2, 3)
Matrix = NDArray[np.float64]


def toeplitz(column: list[float], size: int) -> Matrix:
    full = np.zeros(size)
    full[: len(column)] = column[:size]
    return np.array([[full[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])


#: C and C_e as values of the package, and as NumPy makes them.
TRAINING = InverseToeplitz([1.0, -0.8], N), np.linalg.inv(toeplitz([1.0, -0.8], N))
FIRST_TERMS: dict[str, list[float]] = {"identity": [1.0], "decaying": [1.0, 0.6, 0.2], "mixed": [1.0, -0.5]}


def evaluation_plan(
    every: int, contract: Participation, column: list[float], multiplier: float = 1.9, **changes: Any
) -> tuple[EvaluationPlan, Matrix]:
    C: Factorization = Toeplitz(column[: contract.rounds], contract.rounds)
    values: dict[str, Any] = {
        "rounds": N,
        "every": every,
        "size": 4,
        "participation": contract,
        "mechanism": Mechanism("given", {}, C),
        "workload": "window:1",
        "sensitivity": stated_sensitivity(C, contract),
        "noise_multiplier": multiplier,
        "share": 0.2,
        "ranges": (("loss", 0.0, 2.0), ("accuracy", 0.0, 1.0)),
    }
    return EvaluationPlan(**{**values, **changes}), toeplitz(column, contract.rounds)


def patterns(contract: Participation) -> Iterator[tuple[int, ...]]:
    """Every pattern that (n, k, b) allows."""
    for length in range(contract.max_participations + 1):
        for rounds in itertools.combinations(range(contract.rounds), length):
            if all(j - i >= contract.min_separation for i, j in itertools.pairwise(rounds)):
                yield rounds


def joint_mu(
    blocks: list[tuple[Matrix, float, int]], of_user: list[list[tuple[int, ...]]], adjacency: str
) -> float:
    """The largest ‖J x‖ over patterns and signs, J the operator of all rows that were released.

    Args:
        blocks: for each stream C, the standard deviation of its z and how many rows it has released.
        of_user: for each stream the patterns to try.
        adjacency: what one user's entries may be: 0 or ±1, or differences of those.
    """
    reach = {"zero-out": 1.0, "replace-one": 2.0}[adjacency]
    largest = 0.0
    for chosen in itertools.product(*of_user):
        slots = [(stream, t) for stream, rounds in enumerate(chosen) for t in rounds]
        for signs in itertools.product((-1.0, 1.0), repeat=len(slots)):
            total = 0.0
            for stream, (C, std, released) in enumerate(blocks):
                x = np.zeros(C.shape[1])
                for (where, t), sign in zip(slots, signs, strict=True):
                    if where == stream:
                        x[t] = sign * reach
                total += float(np.sum((C[:released] @ x / std) ** 2))
            largest = max(largest, total)
    return math.sqrt(largest)


CASES = [
    (1, Participation(6, 6, 1), "identity"),
    (2, Participation(3, 2, 1), "decaying"),
    (2, Participation(3, 2, 2), "mixed"),
    (4, Participation(2, 2, 1), "decaying"),
]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("every", "contract", "name"), CASES)
def test_planned_epsilon_is_that_of_the_worst_pair_of_patterns(
    every: int, contract: Participation, name: str, adjacency: str
) -> None:
    evaluation, C_e = evaluation_plan(every, contract, FIRST_TERMS[name])
    plan = make_header(own_streams=(evaluation,), adjacency=adjacency).plan
    stds = plan.relative_noise_std, evaluation.relative_noise_std(adjacency)
    for released in range(1, N + 1):
        evaluated = sum(evaluation.after(e) <= released for e in range(contract.rounds))
        mu = joint_mu(
            [(TRAINING[1], stds[0], released), (C_e, stds[1], evaluated)],
            [
                [p for p in patterns(CONTRACT) if max(p, default=0) < released],
                [p for p in patterns(contract) if max(p, default=0) < max(1, evaluated)],
            ],
            adjacency,
        )
        expected = dp_accounting.get_epsilon_gaussian(1 / mu, DELTA)
        assert plan.epsilon_after(released) == pytest.approx(expected, rel=1e-9)
    assert plan.joint_multiplier == pytest.approx(1 / mu, rel=1e-9)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 40.0])
def test_shares_of_a_budget_add_up_to_it_and_not_to_more(epsilon: float, share: float) -> None:
    training, evaluation = shared_multipliers(epsilon, DELTA, share)
    mu = math.hypot(1 / training, 1 / evaluation)
    total = 1 / dp_accounting.get_sigma_gaussian(epsilon, DELTA)
    assert mu == pytest.approx(total, rel=1e-8)
    assert dp_accounting.get_epsilon_gaussian(1 / mu, DELTA) <= epsilon * (1 + 1e-12)
    assert (1 / evaluation / mu) ** 2 == pytest.approx(share, rel=1e-9)
    assert joint_multiplier(training, evaluation) <= 1 / mu
    assert joint_multiplier(training, math.inf) == pytest.approx(training, rel=1e-12)


ROUNDS = [["a", "b"], ["c"], [], ["a"], ["c"], []]
JUDGED = [["a", "b", "d"], ["b", "c"], ["a", "d"]]
PLAN_E, DENSE_E = evaluation_plan(2, Participation(3, 2, 1), FIRST_TERMS["decaying"])


def recorded(
    folder: Path, header: RunHeader, rounds: list[list[str]], judged: list[list[str]]
) -> tuple[Ledger, dict[str, Ledger]]:
    (planned,) = header.plan.own_streams
    ledgers = []
    for name, contract, users_of in (
        ("ledger", header.plan.participation, rounds),
        ("evaluation", planned.participation, judged),
    ):
        ledger = begin(folder / name, contract, header.to_dict())
        for index, users in enumerate(users_of):
            ledger.commit_round(index, users, "c", "d", "released" if users else "empty")
        ledgers.append(ledger)
    return ledgers[0], {planned.name: ledgers[1]}


def pattern_of(user: str, users_of: list[list[str]]) -> tuple[int, ...]:
    return tuple(index for index, users in enumerate(users_of) if user in users)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("released", "evaluated"), [(2, 0), (2, 1), (5, 2), (6, 3)])
def test_realised_epsilon_of_each_user_is_of_both_records(
    tmp_path: Path, adjacency: str, released: int, evaluated: int
) -> None:
    header = make_header(own_streams=(PLAN_E,), adjacency=adjacency)
    rounds, judged = ROUNDS[:released], JUDGED[:evaluated]
    ledgers = recorded(tmp_path, header, rounds, judged)
    blocks = [
        (TRAINING[1], header.plan.relative_noise_std, released),
        (DENSE_E, PLAN_E.relative_noise_std(adjacency), evaluated),
    ]
    expected = {
        user: joint_mu(blocks, [[pattern_of(user, rounds)], [pattern_of(user, judged)]], adjacency)
        for user in "abcd"
        if pattern_of(user, rounds) or pattern_of(user, judged)
    }
    spent = user_privacy(header, *ledgers)
    assert sorted(spent.users) == sorted(expected)
    for user, epsilon, times in zip(spent.users, spent.epsilon, spent.evaluations, strict=True):
        assert epsilon == pytest.approx(
            dp_accounting.get_epsilon_gaussian(1 / expected[user], DELTA), rel=1e-7
        )
        assert times == len(pattern_of(user, judged))
    statement = build_statement(header, *ledgers)
    worst = max(joint_mu(blocks, [[()], [pattern_of(user, judged)]], adjacency) for user in "abcd")
    trained = max(joint_mu(blocks, [[pattern_of(user, rounds)], [()]], adjacency) for user in "abcd")
    assert statement.realised.mu == pytest.approx(math.hypot(worst, trained), rel=1e-9)
    assert statement.realised.mu >= max(expected.values()) * (1 - 1e-12)
    for ledger in (ledgers[0], *ledgers[1].values()):
        ledger.close()


def test_a_statement_says_what_evaluation_is_part_of_it(tmp_path: Path) -> None:
    header = make_header(own_streams=(PLAN_E,))
    ledgers = recorded(tmp_path, header, ROUNDS, JUDGED)
    statement = build_statement(RunHeader.from_dict(header.to_dict()), *ledgers)
    said, mu = statement.to_dict(), math.hypot(1 / 0.7, 1 / 1.9)
    # Half a range, √2 numbers a row, σ_e, sens(C_e) of the dense matrix, 4 users, C_e⁻¹'s longest row.
    sensitivity = max(
        float(np.linalg.norm(DENSE_E[:, list(p)].sum(axis=1))) for p in patterns(Participation(3, 2, 1))
    )
    longest = float(np.linalg.norm(np.linalg.inv(DENSE_E), axis=1).max())
    bar = math.sqrt(2) * 1.9 * sensitivity * longest / 4
    assert said["evaluation"] == {
        "evaluations": 3, "evaluations_released": 3, "every": 2, "size": 4, "share": 0.2,
        "metrics": {
            "loss": {"low": 0.0, "high": 2.0, "largest_std": pytest.approx(bar)},
            "accuracy": {"low": 0.0, "high": 1.0, "largest_std": pytest.approx(bar / 2)},
        },
        "max_participations": 2, "min_separation": 1, "mechanism": "given", "params": {},
        "workload": "window:1", "sensitivity": PLAN_E.sensitivity.value,
        "sensitivity_kind": PLAN_E.sensitivity.kind, "noise_multiplier": 1.9,
        "mu_planned": pytest.approx(1 / 1.9),
    }  # fmt: skip
    spent = max(
        joint_mu(
            [(DENSE_E, PLAN_E.relative_noise_std("zero-out"), 3)], [[pattern_of(user, JUDGED)]], "zero-out"
        )
        for user in "abcd"
    )
    assert said["evaluation_realised"] == {
        "mu": pytest.approx(spent), "max_participations": 2, "min_separation": 1, "users_participated": 4,
        "empty": 0,
    }  # fmt: skip
    assert "evaluation_realised" in said["not_private"]
    assert "evaluation_realised" not in statement.public()
    assert statement.public()["evaluation"] == said["evaluation"]
    assert said["mu_planned"] == pytest.approx(mu)
    assert said["rho_planned"] == pytest.approx(mu**2 / 2)
    assert said["epsilon_planned"] == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, DELTA))
    assert "3 of 3 private ones under the same epsilon, of 4 users each" in statement.render_text()


def test_records_that_contradict_the_plan_make_no_statement(tmp_path: Path) -> None:
    header = make_header(own_streams=(PLAN_E,))
    ledger, evaluations = recorded(tmp_path, header, ROUNDS[:3], JUDGED[:2])
    with pytest.raises(LedgerError, match="holds 2; after 3 rounds there can be 1 at most"):
        build_statement(header, ledger, evaluations)
    with pytest.raises(LedgerError, match="a record of evaluations exactly where its header plans them"):
        build_statement(header, ledger)
    with pytest.raises(LedgerError, match="a record of evaluations exactly where its header plans them"):
        build_statement(make_header(), ledger, evaluations)
    small, _ = evaluation_plan(2, Participation(3, 2, 1), FIRST_TERMS["decaying"])
    understated = Toeplitz([1.0], 3), Participation(3, 2, 1)
    small, _ = evaluation_plan(
        2, Participation(3, 2, 1), [1.0, 0.6, 0.2], sensitivity=stated_sensitivity(*understated)
    )
    (tmp_path / "other").mkdir()
    header = make_header(own_streams=(small,))
    with pytest.raises(LedgerError, match=r"states sensitivity .* of evaluations, below the"):
        build_statement(header, *recorded(tmp_path / "other", header, ROUNDS, JUDGED))
    strangers = [["v", "w"], ["x", "y"], ["z", "a"]]
    (tmp_path / "more").mkdir()
    header = make_header(own_streams=(PLAN_E,))
    with pytest.raises(LedgerError, match="ledger of evaluations holds 6 users; the header says there are 5"):
        build_statement(header, *recorded(tmp_path / "more", header, ROUNDS, strangers))


def test_no_theorem_no_plan() -> None:
    with pytest.raises(ValueError, match=r"own_streams .* names of their own"):
        make_header(own_streams=(PLAN_E, PLAN_E))
    with pytest.raises(ValueError, match="must be None in a run without noise"):
        make_header(own_streams=(PLAN_E,), noise_multiplier=0.0)
    with pytest.raises(ValueError, match="amplification must be None with private evaluation"):
        make_header(
            own_streams=(PLAN_E,),
            privacy=UserLevel(delta=DELTA, amplified=True),
            cohorts=BallsInBinsCohorts(rounds=N, size=2),
            amplification=object(),
        )
    for changes, message in (
        ({"share": 1.0}, "share"),
        ({"noise_multiplier": 0.0}, "σ_e"),
        ({"ranges": ()}, "must name each number once"),
        ({"ranges": (("loss", 0.0, 1.0), ("loss", 0.0, 2.0))}, "must name each number once"),
        ({"ranges": (("loss", 0.0, math.inf),)}, "range .of loss. must have finite ends"),
        ({"ranges": (("loss", 1.0, 1.0),)}, "range .of loss. must have finite ends"),
        ({"ranges": (("loss", -1e308, 1e308),)}, "range .of loss. must have finite ends"),
        ({"every": 1}, "E .participation of evaluations. must be 6; got 3"),
        ({"workload": "window:9"}, "w .window width."),
    ):
        with pytest.raises(ValueError, match=message):
            evaluation_plan(changes.pop("every", 2), Participation(3, 2, 1), [1.0], **changes)


@pytest.mark.parametrize(
    "workload", ["window:1", "window:2", "exponential:0.8", "prefix", "average", "prefix*linear"]
)
def test_error_bars_are_those_of_the_workload(workload: str) -> None:
    plan, C_e = evaluation_plan(1, Participation(6, 2, 1), FIRST_TERMS["decaying"], workload=workload)
    A = plan.queries.materialize()
    for e in range(6):
        row = A[e] / A[e].sum()
        np.testing.assert_allclose(plan.weights(e), row[: e + 1], rtol=1e-12)
        expected = np.linalg.norm(row @ np.linalg.inv(C_e))
        assert plan.relative_errors[e] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("every", range(1, 9))
def test_evaluations_are_due_after_every_so_many_rounds_and_the_last(every: int) -> None:
    after = sorted({*range(every, N + 1, every), N})
    plan, _ = evaluation_plan(every, Participation(len(after), 1, 1), [1.0])
    assert [plan.after(e) for e in range(plan.count)] == after
    for t in range(N + 1):
        assert plan.due(t) == (after.index(t) if t in after else None)
        assert plan.released_by(t) == sum(a <= t for a in after)
