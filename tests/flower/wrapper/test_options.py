"""Options of a wrapped app give what the same options of a run of fedmf give, on the same data."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from support.amplified_runs import ACCOUNTANTS, keys
from support.apps_of_runs import TASK, same_as_a_run, wrapped
from support.small_runs import small_run

import fedmf
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.optim import Adam, ChosenOptimizer, JmeAdam, ServerOptimizer, Sgd
from fedmf.records import Ledger
from fedmf.runs.statistics import QuantileClipping

RULES: dict[str, ChosenOptimizer] = {
    "momentum": Sgd(learning_rate=0.5, momentum=0.8),
    "Adam": Adam(learning_rate=0.05),
    "a second moment of each user": JmeAdam(learning_rate=0.05),
    "the square of the mean": JmeAdam(learning_rate=0.05, second_form="squared-mean"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_server_rule_of_ours_steps_as_in_a_run(name: str, tmp_path: Path) -> None:
    run = dataclasses.replace(small_run(TASK, mechanism="bisr", epsilon=20.0), server=RULES[name])
    same_as_a_run(run, tmp_path)


@pytest.mark.parametrize("unit_steps", [False, True])
def test_a_clip_norm_that_follows_a_quantile_moves_as_in_a_run(unit_steps: bool, tmp_path: Path) -> None:
    clipping = QuantileClipping(quantile=0.3, learning_rate=0.6, rounds_per_update=1, unit_steps=unit_steps)
    run = dataclasses.replace(small_run(TASK, mechanism="bisr", epsilon=20.0), clipping=clipping)
    same_as_a_run(run, tmp_path)
    theirs = fedmf.Run.from_directory(tmp_path / "run", task=TASK).clipping
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as mine:
        expected = {t: row["clip_norm"] for t, row in mine.metrics().items()}
    with Ledger.open(tmp_path / "app" / "ledger.sqlite", read_only=True) as mine:
        norms = {t: row["clip_norm"] for t, row in mine.metrics().items()}
    assert theirs == clipping
    assert norms.keys() == expected.keys() == set(range(13))
    assert len({norms[t] for t in range(1, 13)}) == 12
    assert all(norms[t] == pytest.approx(expected[t], rel=1e-9) for t in norms)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_sampled_cohorts_are_amplified_as_in_a_run(accountant: str, tmp_path: Path) -> None:
    same_as_a_run(small_run(TASK, **keys(accountant)), tmp_path)


def test_available_cohorts_are_those_of_a_run(tmp_path: Path) -> None:
    available = AvailableCohorts(rounds=12, users_per_round=3, min_separation=4, max_participations=2)
    same_as_a_run(dataclasses.replace(small_run(TASK, mechanism="identity"), cohorts=available), tmp_path)


def test_amplification_needs_sampled_cohorts(tmp_path: Path) -> None:
    strategy = wrapped(small_run(TASK, mechanism="bisr"), tmp_path / "app", amplified=True)
    with pytest.raises(ConfigError, match="cohorts must be sampled for an amplified run"):
        strategy.begin(ArrayRecord(TASK.model.module.state_dict()))


@pytest.mark.parametrize("inner", [FedAdam(), FedAvgM()])
def test_two_server_rules_are_refused(inner: FedAvg, tmp_path: Path) -> None:
    rule: ServerOptimizer | ChosenOptimizer = Sgd()
    with pytest.raises(ConfigError, match="must be one without a server rule, FedAvg or FedProx; got Fed"):
        CorrelatedNoise(
            inner, epsilon=1.0, delta=1e-5, clipping_norm=1.0, num_users=4, users_per_round=2, num_rounds=2,
            run_dir=tmp_path / "run", server_optimizer=rule,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("features.*",), ("features.0.weight", "features.0.bias", "features.1.weight")),
        (("*.bias",), ("features.0.bias", "head.bias")),
        (("head.bias", "features.1.*"), ("features.1.weight", "head.bias")),
        (("odd[1]",), ("odd[1]",)),
    ],
)
def test_whole_modules_are_frozen_by_patterns(patterns: tuple[str, ...], expected: tuple[str, ...]) -> None:
    names = (
        "features.0.weight",
        "features.0.bias",
        "features.1.weight",
        "head.weight",
        "head.bias",
        "odd[1]",
    )
    record = ArrayRecord({name: Array(np.zeros(2, np.float32)) for name in names})
    layout = ArrayLayout.of(record, patterns)
    assert layout.frozen == expected
    assert [name for name, _, _ in layout.trained] == [name for name in names if name not in expected]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    record = ArrayRecord({"head.weight": Array(np.zeros(2, np.float32))})
    with pytest.raises(ConfigError, match=r"got 'features\.\*', which matches none"):
        ArrayLayout.of(record, ("features.*",))
