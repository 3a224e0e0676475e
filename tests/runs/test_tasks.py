"""From a configuration to data and model, the user's own included."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.small_runs import dotted

import fedmf
from fedmf.errors import ConfigError
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import run_of


def configured(**words: object) -> Run:
    """A run of 12 users; words are those of `support.small_runs.KEYS`."""
    return run_of(
        dotted(**{"users": 12, "cohort_size": 3, "rounds": 4, "mechanism": "identity", **words})
    )


def own(function: str) -> Run:
    """A run whose task a function of one's own makes."""
    cohorts = {"users-per-round": 3, "rounds": 4}
    return run_of(
        {"task": {"kind": "function", "function": function, "users": 12}, "cohorts": cohorts}
    )


@pytest.mark.parametrize(
    ("keys", "parameters", "shape"),
    [
        ({"hidden_units": "8,4"}, 65 * 8 + 9 * 4 + 5 * 10, (64,)),
        ({"model": "logistic"}, 650, (64,)),
        ({"model": "cnn", "input_shape": "1,8,8"}, 160 + 4640 + 129 * 32 + 330, (1, 8, 8)),
        ({"dataset": "synthetic", "model": "logistic"}, 610, (60,)),
        ({"dataset": "synthetic", "features": 5, "classes": 3, "hidden_units": "none"}, 18, (5,)),
    ],
)
def test_data_and_model_are_as_configured(
    keys: dict[str, object], parameters: int, shape: tuple[int, ...]
) -> None:
    task = configured(**keys).task_source.build()
    assert task.model.dimension == parameters
    assert tuple(task.dataset.test_features.shape[1:]) == shape
    assert task.dataset.users == 12
    assert 0 < task.evaluate(task.model.initial())["loss"] < 10


MODULE = """
from fedmf.data import Synthetic
from fedmf.models import Logistic
from fedmf.training import classification_task

def make(table):
    data = Synthetic(table.users, seed=table.seed, features=6, examples_per_user=5, classes=3)
    return classification_task(data.load(), Logistic().build((6,), 3, seed=table.seed))

REVERSED = False

def ordered(table):
    task = make(table)
    task.dataset.user_ids = tuple(sorted(task.dataset.user_ids, reverse=REVERSED))
    return task

def wrong(table):
    return 3

def broken(table):
    raise OSError("disk on fire")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_tasks_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "own_tasks_of_a_test", raising=False)
    return "own_tasks_of_a_test"


def test_an_own_task_is_found_in_the_current_folder(own_module: str) -> None:
    task = own(f"{own_module}:make").task_source.build()
    assert (task.model.dimension, task.dataset.users) == (21, 12)


def test_a_run_goes_on_with_its_users_in_their_order_alone(own_module: str, tmp_path: Path) -> None:
    """Cohorts are drawn by place: in another order users have another law, or others are held
    out.
    """
    run = own(f"{own_module}:ordered")
    with fedmf.start(run, tmp_path / "run") as session:
        assert len(session.user_list) == 12
    sys.modules[own_module].REVERSED = True  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"order of users .* must be what the run began with"):
        fedmf.resume(run, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "must return a fedmf.Task; got int"),
        ("broken", "failed: OSError: disk on fire"),
        ("absent", "failed: AttributeError: .*absent"),
    ],
)
def test_a_bad_own_task_is_one_line(own_module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        own(f"{own_module}:{name}").task_source.build()
    assert "\n" not in str(caught.value)
