"""The command line: what it shows, exit codes, errors of one line, and what scripts may rely on."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.command_line import one_line
from support.mean_norms import MeanNorm
from support.small_runs import small_run, write_config

import fedmf
from fedmf.accounting.rounding import at_least, at_most
from fedmf.cli.app import run
from fedmf.errors import ConfigError
from fedmf.runs.cost_estimate import NoiseAndSignal
from fedmf.runs.progress import RunProgress, both
from fedmf.runs.run import Run
from fedmf.runs.simulation import run_in_process
from fedmf.runs.statistics.clip_norm import QuantileClipping
from fedmf.runs.tables.configuration import load_run
from fedmf.training import LocalTrainer, UserFailure

REQUIRED_STATEMENT = {
    "unit",
    "adjacency",
    "mechanism",
    "params",
    "rounds",
    "max_participations",
    "min_separation",
    "actual_max_participations",
    "actual_min_separation",
    "sampling",
    "users",
    "users_per_round",
    "clip_norm",
    "noise_multiplier",
    "sensitivity",
    "sensitivity_kind",
    "delta",
    "epsilon",
    "epsilon_spent",
    "not_covered",
}


@pytest.fixture(scope="module")
def finished(pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(folder / "run.toml")
    assert run(["simulate", str(config), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_a_run_directory_holds_all_reports(finished: Path) -> None:
    names = {
        "config.toml",
        "ledger.sqlite",
        "metrics.parquet",
        "noise.key",
        "statement.json",
        "statement.txt",
    }
    assert names <= {entry.name for entry in finished.iterdir()}
    assert (finished / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "noise.key").stat().st_mode & 0o077 == 0
    assert json.loads((finished / "statement.json").read_text()).keys() >= REQUIRED_STATEMENT
    metrics = pd.read_parquet(finished / "metrics.parquet")
    assert metrics["round"].tolist() == list(range(13))
    assert metrics["epsilon"].is_monotonic_increasing
    assert metrics["epsilon"].iloc[-1] == pytest.approx(8.0, rel=1e-6)
    assert metrics["accuracy"].between(0, 1).all()


def test_account_has_a_block_to_publish_and_one_for_the_operator(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", str(finished), "--json"]) == 0
    statement = json.loads(capsys.readouterr().out)
    assert statement == json.loads((finished / "statement.json").read_text())
    assert run(["account", str(finished), "--full"]) == 0
    assert capsys.readouterr().out.startswith((finished / "statement.txt").read_text())
    assert run(["account", str(finished), "--public", str(tmp_path / "public.json")]) == 0
    publish, operator = capsys.readouterr().out.split("\nOperator only, do not publish:\n")
    assert publish.splitlines()[1] == (finished / "statement.txt").read_text().splitlines()[0]
    assert "epsilon_spent" not in (tmp_path / "public.json").read_text()
    assert "spent" not in publish
    said = {line[:16].strip(): line[16:].strip() for line in operator.splitlines()}
    assert said["worst user"] == f"spent ε {at_least(statement['epsilon_spent'])}"
    assert said["contributions"] == "72 arrived, 6.0 per round of 6 planned"
    assert said["model"].endswith("after round 12")
    assert run(["account", str(finished), "--public", str(tmp_path / "public.json")]) == 2
    assert "exists already and is not overwritten" in one_line(capsys)


def test_account_writes_what_each_user_has_spent_for_the_operator_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users.csv"
    assert run(["account", str(finished), "--users", str(users)]) == 0
    operator = capsys.readouterr().out.split("\nOperator only, do not publish:\n")[1]
    assert f"spent ε of each in {users}" in operator
    assert users.stat().st_mode & 0o777 == 0o600
    spent = pd.read_csv(users)
    assert list(spent) == ["user", "rounds", "epsilon_spent"]
    assert (spent["user"].nunique(), spent["rounds"].sum()) == (24, 72)
    statement = json.loads((finished / "statement.json").read_text())
    for quantile, epsilon in statement["epsilon_spent_quantiles"].items():
        at_q = np.quantile(spent["epsilon_spent"].to_numpy(), float(quantile), method="lower")
        assert at_least(float(at_q)) == at_least(epsilon)
    assert run(["account", *2 * [str(finished)], "--users", str(tmp_path / "both.csv")]) == 2
    assert "--users takes the directory of one run" in one_line(capsys)


def test_a_run_shows_its_plan_a_table_of_rounds_and_the_guarantee_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--out", str(tmp_path / "a [b]")]) == 0
    captured = capsys.readouterr()
    plan, mechanism, heads, *rows = captured.err.splitlines()
    assert re.search(
        r"a \[b\] · \d+ parameters · 24 users, 6 per round, at most 3 rounds each$", plan
    )
    assert re.match(
        r"Mechanism bisr, bands = 4, noise multiplier [\d.]+ → over the whole run, noise is [\d.]+",
        mechanism,
    )
    assert "ε spent" in heads
    assert [int(row.split()[0]) for row in rows if row.split()[0].isdigit()] == list(range(1, 13))
    first, model, following, secret = captured.out.splitlines()
    assert first == (tmp_path / "a [b]" / "statement.txt").read_text().splitlines()[0]
    assert re.match(
        r"Model: test loss [\d.]+, test accuracy [\d.]+ % after 12 of 12 rounds\.", model
    )
    assert following.startswith("Next: fedmf account ")
    assert secret.endswith(" noise.key, ledger.sqlite*, failures.jsonl, operator.json.")
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--out", str(tmp_path / "none"), "--full"]) == 0
    assert "No privacy" in capsys.readouterr().out


def test_the_last_line_says_that_held_out_users_are_not_protected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = [f"u{i}" for i in range(30)]
    rows = [f"{user},{i % 3},{i % 2},{i % 2}" for i, user in enumerate(users * 2)]
    (tmp_path / "rows.csv").write_text("\n".join(["who,a,b,y", *rows]) + "\n")
    (tmp_path / "users.txt").write_text("\n".join(users) + "\n")
    keys = {
        "data": 'kind = "table"\nuser-column = "who"\nlabel-column = "y"\nclass-names = "0,1"\n'
        'feature-columns = "a,b"\npartition = "by-user"\nusers = 24\n'
        f'path = "{tmp_path}/rows.csv"\nuser-list = "{tmp_path}/users.txt"',
        "model": 'kind = "logistic"',
        "cohorts": "rounds = 2\nusers-per-round = 4",
        "privacy": "epsilon = 8.0\ndelta = 1e-5\nnoise-seed = 1",
        "mechanism": 'kind = "identity"',
    }
    config = tmp_path / "run.toml"
    config.write_text("\n".join(f"[{table}]\n{values}" for table, values in keys.items()))
    assert run(["simulate", str(config), "--out", str(tmp_path / "a")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Not protected: the test part belongs to held-out users")
    tests = tmp_path / "tests.csv"
    tests.write_text("\n".join(["a,b,y", "0,1,1", "1,0,0", "2,,1"]) + "\n")
    public = ["--set", f"data.test-path={tests}", "--set", "data.users=30"]
    assert run(["simulate", str(config), "--out", str(tmp_path / "b"), *public]) == 0
    assert "Do not publish them" not in capsys.readouterr().out
    statement = json.loads((tmp_path / "b" / "statement.json").read_text())
    (part,) = [each for each in statement["public_inputs"] if each["name"] == "test part"]
    assert part["source"] == f"public file {tests}"
    assert run(["predict", str(tmp_path / "b"), "--input", str(tests)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def shown(path: Path, made: Run, terminal: bool) -> tuple[str, RunProgress]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    with fedmf.start(made, path) as session, RunProgress(session, console) as view:
        run_in_process(session, view)
    return text.getvalue(), view


@pytest.mark.usefixtures("mean_norms")
def test_an_empty_table_of_a_statistic_is_rejected(tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.toml")
    config.write_text(config.read_text() + "\n[mean_norms]\n")
    with pytest.raises(ConfigError, match=r"^table \[mean_norms\] must have a key"):
        load_run(config)


@pytest.mark.usefixtures("mean_norms")
def test_progress_has_a_bar_on_terminals_and_every_column_of_statistics(tmp_path: Path) -> None:
    keys = {"mechanism": "bisr", "bands": 2, "evaluate_every": 4}
    made = dataclasses.replace(
        small_run(**keys),
        clipping=QuantileClipping(quantile=0.4),
        extra_releases=(MeanNorm(budget_share=0.1),),
    )
    text, view = shown(tmp_path / "run", made, terminal=True)
    assert "12/12" in text
    for title in ("clip norm", "mean norm", "ε spent"):
        assert title in text
    assert "mean norm" not in view.quality()


def test_one_callback_of_several_stops_a_run_and_all_are_called() -> None:
    seen: list[int] = []
    called = both(lambda record: True, None, lambda record: seen.append(record))
    assert called(3)
    assert seen == [3]
    assert not both(None, lambda record: None)(3)


@pytest.mark.parametrize("kind", ["none", "user-level"])
def test_failed_users_are_told_of_where_there_is_no_privacy_to_lose(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = LocalTrainer.add_updates

    def failing(
        trainer: LocalTrainer, parameters: Any, users: Any, t: int, *sums: Any
    ) -> list[UserFailure]:
        failures = trained(trainer, parameters, users, t, *sums)
        if "A" in users:  # who is made up before the run begins
            return failures
        return [*failures, UserFailure(users[0], "training", "no luck")]

    monkeypatch.setattr(LocalTrainer, "add_updates", failing)
    config = write_config(tmp_path / "run.toml", private=kind == "user-level")
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    assert ("contributions could not be used" in caplog.text) == (kind == "none")
    assert "no luck" in (tmp_path / "run" / "failures.jsonl").read_text()
    assert "no luck" not in capsys.readouterr().out
    assert run(["account", str(tmp_path / "run")]) == 0
    assert "12; the first: no luck" in capsys.readouterr().out


def test_a_dry_run_says_what_a_run_promises_and_costs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml", mechanism="bsr")
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", str(config), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    said = dict(re.split(r"  +", line, maxsplit=1) for line in captured.out.splitlines())
    plan = fedmf.plan(load_run(config))
    assert said["epsilon"] == "8 at delta 1e-05, zero-out adjacency"
    participation = "12 rounds, at most 3 per user, 4 apart; 6 of 24 users per round"
    assert said["participation"] == participation
    multiplier = plan.noise_multiplier
    std = plan.noise_std
    assert said["noise"] == f"multiplier {at_most(multiplier)}, standard deviation {at_most(std)}"
    assert re.fullmatch(r"[\d.]+ MiB: 3 stored vectors", said["memory of noise"])
    assert "ms: local training" in said["time of a round"]
    assert re.match(r"\d+ s: 12 rounds, and \d+ evaluations", said["time of the run"])
    assert re.match(r"[\d,]{3,} MiB: libraries, data", said["memory of the process"])
    assert re.match(r"\d+ of \d+ cores in use", said["faster"])
    small = NoiseAndSignal(plan, 100_000).advice
    assert small is not None
    figures = re.search(r"noise is ([\d.,]+) % .* d = ([\d,]+), or with ([\d,]+) users", small)
    assert figures is not None
    noise, fewer, more = [float(figure.replace(",", "")) for figure in figures.groups()]
    assert NoiseAndSignal(plan, int(0.9 * fewer)).advice is None
    assert noise * 6 / more == pytest.approx(20, rel=0.1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]


TABLE = """
[data]
kind = "table"
path = "rows.csv"
feature-columns = "x"
label-column = "y"
class-names = "no,yes"
user-column = "who"
user-list = "users.txt"
partition = "by-user"
users = 8
[model]
kind = "logistic"
[cohorts]
rounds = 2
users-per-round = 4
[privacy]
epsilon = 8.0
"""


def test_the_operator_is_told_which_rows_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TABLE)
    (tmp_path / "users.txt").write_text("\n".join(f"u{i}" for i in range(10)))
    lines = [f"u{i % 10},{i},{('no', 'yes')[i % 2]}" for i in range(100)]
    spoilt = ["u1,many,no", "u2,1,no,more", "u3,1,No", "u4,2,yes,,"]
    (tmp_path / "rows.csv").write_text("\n".join(["who,x,y", *lines, *spoilt]))
    assert run(["simulate", "run.toml", "--dry-run"]) == 0
    left_out = "1 (more fields than the header), 1 (x: not a finite number), 1 (y: none of the"
    shown = capsys.readouterr().out
    assert re.search(r"rows  +104, of which users train on \d+\n", shown)
    assert re.search(rf"rows left out  +{re.escape(left_out)}", shown)
    assert run(["simulate", "run.toml", "--out", "run"]) == 0
    captured = capsys.readouterr()
    assert "not a finite number" not in captured.out + captured.err
    assert "failures.jsonl, operator.json." in captured.out
    file = tmp_path / "run" / "operator.json"
    assert file.stat().st_mode & 0o777 == 0o600
    counts = json.loads(file.read_text())
    assert (counts["rows"], counts["users"], sum(counts["left_out"].values())) == (104, 8, 3)
    assert counts["columns"] == {"x": "text", "y": "text", "who": "text"}


def test_options_search_names_and_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["options", "clip", "norm"]) == 0
    assert capsys.readouterr().out.startswith(
        "privacy.clip-norm  (float, default 0.3)\n    bound ζ on the L2 norm"
    )
    assert run(["options", "no-such-word"]) == 2
    assert "no key has 'no-such-word' in its name or description" in one_line(capsys)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "privacy.epsilonn=1",
            "unknown configuration key 'privacy.epsilonn'; did you mean 'privacy.epsilon'?",
        ),
        ("privacy.epsilon=nan", "ε (epsilon) must be a finite number"),
        ("cohorts.max-participations=9", "k (max_participations)"),
        ("cohorts.users-per-round=25", "more users than exist"),
        ("mechanism.kind=bisrr", "bisr"),
        ("mechanism.bands=four", "[mechanism] p (bands) must be a valid integer; got 'four'"),
        ("data.users=99999", "training examples"),
        ("rounds", "key=value"),
    ],
)
def test_bad_values_are_one_line_and_leave_nothing(
    assignment: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--set", assignment, "--out", str(tmp_path / "run")]) == 2
    assert message in one_line(capsys)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]


def test_bad_files_and_places_are_one_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    good = str(write_config(tmp_path / "run.toml"))
    cases = [
        (["simulate", str(tmp_path / "bad.toml")], "is not TOML"),
        (["simulate", str(tmp_path / "none.toml")], "cannot read configuration"),
        (["simulate"], "needs CONFIG.toml"),
        (
            ["simulate", good, "--out", str(finished)],
            "already holds a run: resume it (--resume), or choose another",
        ),
        (
            ["simulate", good, "--out", str(tmp_path / "other")],
            "must be new or empty; it contains other",
        ),
        (["simulate", good, "--out", "/proc/fedmf/run"], "cannot be created"),
        (["simulate", good, "--out", "x", "--resume", "y"], "use only one"),
        (["simulate", "--resume", str(tmp_path / "other")], "is not a run directory"),
        (
            ["simulate", good, "--resume", str(finished), "--set", "privacy.epsilon=3"],
            "is 8.0, not 3.0",
        ),
        (["simulate", good, "--engine", "gpu"], "--engine"),
        (["account", str(tmp_path / "none")], "is not a run directory"),
        (["simulat"], "No such command"),
        (["simulate", "--sett", "x"], "No such option"),
    ]
    for arguments, message in cases:
        assert run(arguments) == 2, arguments
        assert message in one_line(capsys), arguments
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_cuda_without_a_gpu_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU, so asking for one is no error")
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--device", "cuda", "--out", str(tmp_path / "run")]) == 2
    assert "needs an NVIDIA GPU" in one_line(capsys)
