"""Kinds of data that there are no more: what earlier versions wrote of them is read as today's."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from support.data_files import digest_of, write_rows

from fedmf.data import DATASETS, RETIRED, in_todays_words
from fedmf.errors import ConfigError
from fedmf.runs import load_run, parse_assignments, run_of
from fedmf.runs.named_tasks import task_of

#: Records, configurations, public inputs and digests of the data (`digest_of`) as version 0.2.0 made them.
WRITTEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("retired_kinds.json").read_text())
NAMES = [case["record"]["data"]["kind"] for case in WRITTEN]
every_case = pytest.mark.parametrize("case", WRITTEN, ids=NAMES)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the records are of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    users = [f"u{u}" for u in range(8)]
    rows = [
        {"user": user, "text": f"the {user} cat {i} sat", "label": "yn"[(u + i) % 2], "tags": "D N N N V"}
        for u, user in enumerate(users)
        for i in range(3)
    ]
    Path("users.txt").write_text("\n".join(users))
    pd.DataFrame(rows).to_csv("texts.csv", index=False)
    Path("hub").mkdir()
    pd.DataFrame(rows).to_parquet("hub/train.parquet", index=False)
    for i, row in enumerate(rows):
        Path("notes", row["user"]).mkdir(parents=True, exist_ok=True)
        Path("notes", row["user"], f"{i}.txt").write_text(row["text"])
    write_rows(Path("rows.csv"))
    return tmp_path


def test_every_kind_that_went_is_among_them() -> None:
    assert {*NAMES} == {*RETIRED}
    assert not {*RETIRED} & {*DATASETS}
    assert {kind for kind, _ in RETIRED.values()} <= {*DATASETS}


@every_case
def test_a_record_is_the_data_that_it_was(case: dict[str, Any], place: Path) -> None:
    task = task_of(case["record"], None)
    assert digest_of(task.data.load()) == case["digest"]  # type: ignore[union-attr]
    assert [[p.name, p.value, p.source] for p in task.public_inputs()] == case["public"]  # type: ignore[union-attr]
    assert in_todays_words(task.to_dict()["data"]) == task.to_dict()["data"]  # type: ignore[union-attr]


@every_case
def test_a_configuration_is_read_and_what_it_is_today_is_said(
    case: dict[str, Any], place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedmf"):
        run = run_of(tomllib.loads(case["toml"]))
    assert run.task_source == task_of(case["record"], None)
    kind = case["record"]["data"]["kind"]
    assert f"[data] kind {kind!r} is {RETIRED[kind][0]!r} today" in caplog.text
    assert caplog.text.count("\n") == 1


def test_a_kind_that_went_is_overridden_like_another(place: Path) -> None:
    Path("old.toml").write_text(WRITTEN[1]["toml"])
    keys = parse_assignments(["data.kind=code-tokens", "data.users=20"])
    assert load_run("old.toml", keys).task_source.to_dict()["data"]["kind"] == "code-tokens"
    keys = parse_assignments(["data.text-column=text", "data.path=texts.csv"])
    assert load_run("old.toml", keys).task_source.to_dict()["data"]["text_column"] == "text"
    with pytest.raises(ConfigError, match=r"features is a key of synthetic, not of kind 'table'"):
        load_run("old.toml", parse_assignments(["data.features=3"]))


@pytest.mark.parametrize(("kind", "column"), [("text", "*.txt"), ("hub-text", "text")])
def test_what_a_configuration_left_out_is_what_it_meant(kind: str, column: str) -> None:
    keys = {"task.kind": "next-token", "model.kind": "lstm", "data.kind": kind, "data.path": "x"}
    data = run_of({**keys, "data.roster": "users.txt", "cohorts.size": 10}).task_source.to_dict()["data"]
    said = {"partition": "natural", "user_column": "user", "text_column": column, "label_column": ""}
    assert {name: data[name] for name in said} == said
