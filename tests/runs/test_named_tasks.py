"""Tasks made of [data] and [model] by kind: trained from a file, judged by their own metrics
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedmf
from fedmf.cli.app import run as command
from fedmf.cohorts import CyclicCohorts
from fedmf.data import Table
from fedmf.errors import ConfigError
from fedmf.models import Architecture
from fedmf.models.recurrent import MeanPosition
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import load_run, render_toml, run_of
from fedmf.runs.tasks import Classification, NamedTask, NextToken
from fedmf.statements.privacy import UserLevel
from fedmf.training import LocalSGD

USERS = 12


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve users and two held out, with labels that linear models can learn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((280, 3)).round(3)
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    table["who"] = [f"u{i % 14:02d}" for i in range(280)]
    table["y"] = (x @ [1.0, -2.0, 0.5]).round(3)
    table["p"] = (x[:, 0] > 0).astype(int)
    table["q"] = (x[:, 1] + x[:, 2] > 0).astype(int)
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    table.to_csv(path, index=False)
    path.with_name("users.txt").write_text("".join(f"u{u:02d}\n" for u in range(14)))
    return str(path)


def tables(kind: str, path: str, labels: str, **more: Any) -> dict[str, Any]:
    return {
        "task": {"kind": kind},
        "data": {
            "kind": "table",
            "path": path,
            "user-list": path.replace("rows.csv", "users.txt"),
            "feature-columns": "a,b,c",
            "label-column": labels,
            "user-column": "who",
            "partition": "by-user",
            "test-fraction": 0.15,
            "users": USERS,
        },
        "model": {"kind": "logistic"},
        "cohorts": {"rounds": 12, "users-per-round": 6},
        "privacy": {"epsilon": 200.0, "clip-norm": 1.0, "noise-seed": 0},
        "mechanism": {"kind": "identity"},
        "server": {"learning-rate": 1.0},
        "client": {"learning-rate": 0.1},
        **more,
    }


TASKS = {"regression": ("y", ["mae", "rmse"]), "multi-label": ("p,q", ["f1", "auc"])}


@pytest.mark.parametrize("kind", TASKS)
def test_a_file_says_what_is_learnt(
    kind: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, names = TASKS[kind]
    run = run_of(tables(kind, rows, labels))
    (tmp_path / "run.toml").write_text(render_toml(run))
    assert load_run(tmp_path / "run.toml").to_dict() == run.to_dict()
    assert Run.from_dict(run.to_dict()).difference(run) is None
    assert command(["simulate", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    for name in names:
        assert f"{name} " in shown.out  # the summary
        assert name in shown.err  # the table of rounds
    assert "accuracy" not in shown.out + shown.err
    table = pd.read_parquet(tmp_path / "run/metrics.parquet")
    assert list(table.columns) == ["round", "loss", *names, "epsilon"]
    assert table["loss"].iloc[-1] < table["loss"].iloc[0]
    assert table[names].notna().all(axis=None)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            "classification",
            {},
            "must suit task 'classification': class numbers as labels; got a data set",
        ),
        ("next-token", {}, "must suit task 'next-token': tokens as features"),
        ("multi-label", {}, "must suit task 'multi-label': two or more columns of numbers 0 and 1"),
        ("multi-label", {"label-column": "y,p"}, "labels of task 'multi-label' must be 0 or 1"),
    ],
)
def test_data_that_do_not_suit_a_task_are_refused(
    kind: str, changes: dict[str, Any], message: str, rows: str, tmp_path: Path
) -> None:
    values = tables(kind, rows, "y")
    values["data"] |= changes
    with pytest.raises((ConfigError, ValueError), match=message) as refusal:
        fedmf.start(run_of(values), tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class TinyTokens(Architecture):
    """An embedding and a dense layer; of one position or of each."""

    kind: ClassVar[str] = "tiny-tokens"
    takes_tokens: ClassVar[bool] = True
    pooled: bool = False

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        embedding = nn.Embedding(vocabulary, 8)
        output = nn.Linear(8, outputs)
        return nn.Sequential(embedding, *([MeanPosition()] if self.pooled else []), output)


def texts(folder: Path, labels: dict[str, Any]) -> dict[str, Any]:
    """Eight users, two of them held out, with texts that decide their labels."""
    rows = [
        {
            "user": f"u{u}",
            "text": "".join("ab"[(u + i + j) % 2 if i < 3 else 0] for j in range(6)),
            "mood": "yes" if i < 3 else "no",
        }
        for u in range(8)
        for i in range(6)
    ]
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    (folder / "users.txt").write_text("".join(f"u{u}\n" for u in range(8)))
    paths = {"path": str(folder / "rows.csv"), "user_list": str(folder / "users.txt")}
    by_user = {"partition": "by-user", "user_column": "user", "text_column": "text"}
    return {**paths, "users": 6, "test_fraction": 0.25, "length": 8, **by_user, **labels}


TOKENS: dict[str, tuple[type[NamedTask], dict[str, Any], list[str]]] = {
    "next token": (NextToken, {}, ["perplexity", "token_accuracy"]),
    "classes": (
        Classification,
        {"label_column": "mood", "class_names": ("yes", "no")},
        ["accuracy"],
    ),
}


@pytest.mark.parametrize("name", TOKENS)
def test_texts_are_learnt_and_judged(name: str, tmp_path: Path) -> None:
    make, labels, names = TOKENS[name]
    task = make(Table(**texts(tmp_path, labels)), TinyTokens(pooled=name == "classes"))
    run = Run(
        task,
        CyclicCohorts(rounds=12, users_per_round=3),
        UserLevel(epsilon=300.0, clip_norm=1.0, noise_seed=0),
        "identity",
        client=LocalSGD(learning_rate=1.0),
    )
    result = fedmf.simulate(run, tmp_path / "run")
    first = result.metrics[0]
    last = result.metrics[12]
    assert set(last) == {"loss", *names, "epsilon"}
    assert last["loss"] < first["loss"]
    if "perplexity" in names:
        assert last["perplexity"] < first["perplexity"]
    assert task.build().dataset.vocabulary == 257
    listed = {entry["name"]: entry for entry in result.statement.to_dict()["public_inputs"]}
    assert "SHA-256" in listed["vocabulary"]["value"]
