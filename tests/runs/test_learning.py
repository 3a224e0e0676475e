"""Whether a run learns is told from public and noised figures, and from nothing else."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedmf.runs import Session, judge_learning
from fedmf.runs.evaluation import NoEvaluator, PrivateEvaluator
from fedmf.runs.observing.learning import Figure, verdict
from fedmf.training import ACCURACY


def session(
    rows: dict[int, dict[str, Any]],
    owner: str = "nobody",
    tests: int = 400,
    evaluator: object = NoEvaluator,
) -> Session:
    """A session as far as it is looked at."""
    dataset = SimpleNamespace(test_owner=owner, test_labels=range(tests))
    task = SimpleNamespace(dataset=dataset, metrics=(ACCURACY,))
    return cast(Session, SimpleNamespace(task=task, metrics=rows, evaluator=evaluator))


def course(*accuracies: float, loss: float = 2.0) -> dict[int, dict[str, Any]]:
    return {10 * t: {"loss": loss, "accuracy": y, "epsilon": 1.0} for t, y in enumerate(accuracies)}


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ([0.1], "cannot tell: accuracy is known of one model only"),
        ([0.1, 0.12], "not learning: accuracy has not changed beyond its error since round 0"),
        ([0.1, 0.4], "learning: accuracy is better than after round 0"),
        ([0.1, 0.5, 0.9], "learning: accuracy is better than after round 10"),
        ([0.1, 0.5, 0.89, 0.9, 0.9], "level: accuracy has not changed beyond its error since round 20"),
        ([0.1, 0.9, 0.9, 0.6, 0.5], "getting worse: accuracy is worse than after round 20"),
        ([0.1, 0.5, math.nan], "getting worse: accuracy is not finite"),
    ],
)
def test_the_newest_figure_is_compared_with_that_of_half_the_rounds_before(
    accuracies: list[float], said: str
) -> None:
    found = judge_learning(session(course(*accuracies)))
    assert f"{found.verdict}: {found.reason}" == said


@pytest.mark.parametrize(("tests", "said"), [(400, "not learning"), (40_000, "learning")])
def test_more_tests_tell_smaller_changes(tests: int, said: str) -> None:
    """0.10 → 0.12: two standard errors of the difference are 0.044 of 400 tests, 0.0044 of 40,000."""
    assert judge_learning(session(course(0.1, 0.12), tests=tests)).verdict == said


def test_the_loss_may_tell_more() -> None:
    rows = course(0.1, 0.12)
    rows[10]["loss"] = 1.5
    assert judge_learning(session(rows)).reason == "loss is better than after round 0"
    rows[10]["loss"] = 2.5
    assert judge_learning(session(rows)).verdict == "not learning"


def test_figures_that_are_not_private_are_never_looked_at() -> None:
    exact = {
        t: {
            "loss_not_private": 2.0 - t / 10,
            "accuracy_not_private": 0.1 + t / 20,
            "federated_accuracy_not_private": 0.1 + t / 20,
            "federated_loss_not_private": 2.0 - t / 10,
        }
        for t in (0, 10)
    }
    found = judge_learning(session(exact, owner="training users"))
    assert found.verdict == "cannot tell"
    assert 'kind = "private"' in found.reason
    flat = {t: {**row, "loss": 2.0, "accuracy": 0.1} for t, row in exact.items()}
    assert judge_learning(session(flat)).verdict == "not learning"


def test_noised_figures_are_judged_by_their_noise() -> None:
    """One standard deviation each: 0.3 is within twice √2·0.12, and not within twice √2·0.1."""
    waiting = judge_learning(session({0: {}}, owner="training users", evaluator=PrivateEvaluator))
    assert waiting.reason == "no private evaluation was released yet"
    for std, said in ((0.12, "not learning"), (0.1, "learning")):
        rows = {
            t: {"accuracy_private": 0.2 + 0.03 * t, "accuracy_private_std": std, "accuracy_not_private": 0.2}
            for t in (10, 20)
        }
        assert judge_learning(session(rows, owner="training users")).verdict == said


def test_a_run_without_tests_has_nothing_to_tell() -> None:
    assert (
        judge_learning(session({0: {"epsilon": 0.0}, 10: {"epsilon": 1.0}}, tests=0)).verdict == "cannot tell"
    )


def test_a_run_that_recovers_from_divergence_learns() -> None:
    assert verdict([Figure(0, math.inf, 1.0), Figure(1, 2.0, 0.02)], "loss", False).verdict == "learning"
