"""The command line: exit codes, one-line errors, and what scripts may rely on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.command_line import one_line
from support.small_runs import small_run

from fedmf.accounting import at_least, at_most
from fedmf.cli.app import run
from fedmf.runs import load_run
from fedmf.runs.tables import render_toml

REQUIRED_STATEMENT = {
    "unit", "adjacency", "mechanism", "params", "rounds", "max_participations", "min_separation",
    "realised_max_participations", "realised_min_separation", "sampling", "users", "cohort_size", "clip_norm",
    "noise_multiplier", "sensitivity", "sensitivity_kind", "delta", "epsilon_planned", "epsilon_realised",
    "not_covered",
}  # fmt: skip


def write_config(path: Path, **overrides: object) -> Path:
    path.write_text(render_toml(small_run(**{"mechanism": "bisr", "bands": 4, **overrides})))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(folder / "run.toml")
    assert run(["simulate", str(config), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_account_shows_how_epsilon_is_spread_over_users(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = json.loads((finished / "statement.json").read_text())
    assert run(["account", str(finished)]) == 0
    shown = capsys.readouterr().out
    assert "Users by realised" in shown
    counts = [line for line in shown.splitlines() if "█" in line]
    assert len(counts) == sum(entry["users"] > 0 for entry in statement["epsilon_realised_histogram"])
    rounds = ", ".join(map(str, statement["realised_worst_pattern"]))
    assert f"a worst user joined the rounds {rounds} (from 0). Not private." in shown


def test_account_writes_the_page_and_the_users(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, users = tmp_path / "page.html", tmp_path / "users.csv"
    command = ["account", str(finished), "--json", "--html", str(page), "--users", str(users)]
    assert run(command) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads((finished / "statement.json").read_text())
    assert page.read_text() == (finished / "statement.html").read_text()
    written = users.read_text().splitlines()
    assert len(written) == 1 + json.loads(shown.out)["users_participated"]
    assert "as private as the participation record" in shown.err
    assert run(command) == 2
    assert "exists already and is not replaced" in capsys.readouterr().err
    page.unlink()
    assert run(command) == 2
    assert users.read_text().splitlines() == written
    assert not page.exists()


def test_a_run_directory_holds_all_reports(finished: Path) -> None:
    names = {entry.name for entry in finished.iterdir()}
    assert {
        "config.toml",
        "ledger.sqlite",
        "metrics.parquet",
        "noise.key",
        "statement.json",
        "statement.txt",
        "statement.html",
    } <= names
    assert (finished / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "noise.key").stat().st_mode & 0o077 == 0
    statement = json.loads((finished / "statement.json").read_text())
    assert statement.keys() >= REQUIRED_STATEMENT
    metrics = pd.read_parquet(finished / "metrics.parquet")
    assert metrics["round"].tolist() == list(range(13))
    assert metrics["epsilon"].is_monotonic_increasing
    assert metrics["epsilon"].iloc[-1] == pytest.approx(8.0, rel=1e-6)
    assert metrics["accuracy"].between(0, 1).all()


def test_account_repeats_the_statement_from_disk(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished / "statement.json").read_text())
    assert run(["account", str(finished)]) == 0
    text = capsys.readouterr().out
    assert "epsilon realised" in text
    assert "Does not cover" in text


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "privacy.epsilonn=1",
            "unknown configuration key 'privacy.epsilonn'; did you mean 'privacy.epsilon'?",
        ),
        ("clip_nrom=1", "did you mean 'privacy.clip-norm'?"),
        ("privacy.epsilon=0", "epsilon"),
        ("privacy.epsilon=-1", "epsilon"),
        ("privacy.epsilon=inf", "epsilon"),
        ("privacy.epsilon=nan", "epsilon"),
        ("privacy.delta=0", "delta"),
        ("privacy.delta=1", "delta"),
        ("privacy.clip-norm=0", "ζ (clip_norm) must be positive"),
        ("privacy.clip-norm=inf", "ζ (clip_norm) must be positive and finite"),
        ("cohorts.max-participations=9", "k (max_participations)"),
        ("cohorts.min-separation=40", "eligible"),
        ("cohorts.size=25", "eligible"),
        ("mechanism.kind=bisrr", "bisr"),
        ("mechanism.gamma=2", "gamma"),
        ("mechanism.bands=four", "[mechanism] bands must be a number; got 'four'"),
        ("mechanism.bands=13", "bands (p)"),
        ("cohorts.rounds=0", "rounds"),
        ("data.users=99999", "training examples"),
        ("data.kind=cifar", "[data] kind must be one of digits"),
        (
            "privacy.kind=nothing",
            "[privacy] kind must be one of user-level, example-level, none; got 'nothing'",
        ),
        ("=3", "key=value"),
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


def test_bad_files_are_one_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    good = str(write_config(tmp_path / "run.toml"))
    cases = [
        (["simulate", str(tmp_path / "bad.toml")], "is not TOML"),
        (["simulate", str(tmp_path / "binary.toml")], "is not TOML"),
        (["simulate", str(tmp_path / "none.toml")], "cannot read configuration"),
        (["simulate", str(tmp_path)], "cannot read configuration"),
        (["simulate"], "needs CONFIG.toml"),
        (["simulate", good, "--out", str(finished)], "holds another run; resume it, or use another place"),
        (["simulate", good, "--out", str(tmp_path / "other")], "must be new or empty; it holds something"),
        (["simulate", good, "--out", str(tmp_path / "bad.toml" / "x")], "cannot be created"),
        (["simulate", good, "--out", "x", "--resume", "y"], "give one of them"),
        (["simulate", "--resume", str(tmp_path / "other")], "is not a run directory"),
        (
            ["simulate", good, "--resume", str(finished), "--set", "privacy.epsilon=3"],
            "its privacy.epsilon is 8.0, not 3.0",
        ),
        (["simulate", good, "--engine", "gpu"], "--engine"),
        (["account", str(tmp_path / "other")], "is not a run directory"),
        (["account", str(tmp_path / "none")], "is not a run directory"),
        (["simulat"], "No such command"),
        (["simulate", "--sett", "x"], "No such option"),
        (["design", "--rounds", "10"], "--max-participations"),
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


def test_an_unwritable_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--out", "/proc/fedmf/run"]) == 2
    assert "output directory /proc/fedmf/run cannot be created: " in one_line(capsys)


def test_a_run_without_noise_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon_planned"] is None
    assert statement["noise_multiplier"] == 0
    assert "No privacy" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["none", "user-level"])
def test_failed_users_are_told_of_where_there_is_no_privacy_to_lose(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml", private=kind == "user-level", user_examples=1)
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    told = "contributions failed and counted as zeros" in captured.err
    assert told == (kind == "none")
    assert "user_examples" in (tmp_path / "run" / "failures.jsonl").read_text()
    assert "user_examples is" not in captured.out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("fedmf 0.1.0\n", "")
    done = subprocess.run([sys.executable, "-m", "fedmf", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fedmf 0.1.0\n", "")


def test_a_dry_run_says_what_a_run_promises_and_costs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml", mechanism="bsr")
    before = config.read_bytes()
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", str(config), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = dict(re.split(r"  +", line, maxsplit=1) for line in captured.out.splitlines())
    plan = load_run(config).plan()
    assert shown["epsilon"] == "8 at delta 1e-05, zero-out adjacency"
    assert shown["participation"] == "12 rounds, at most 3 a user, 4 apart; 6 of 24 users a round"
    multiplier, std = plan.noise_multiplier, plan.noise_std
    assert shown["noise"] == f"multiplier {at_most(multiplier)}, standard deviation {at_most(std)}"
    assert shown["sensitivity"] == f"{at_least(plan.sensitivity.value)} (exact)"
    assert re.fullmatch(r"[\d.]+ MiB: 3 stored vectors", shown["memory of noise"])
    assert re.fullmatch(
        r"[\d,]+ ms: local training [\d,]+ on made-up users, noise [\d.,]+", shown["time of a round"]
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]
    assert config.read_bytes() == before
    assert run(["simulate", str(config), "--dry-run", "--set", "mechanism.bands=13"]) == 2
    assert "bands (p)" in one_line(capsys)
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--dry-run"]) == 0
    assert re.search(r"^epsilon +infinite: no noise$", capsys.readouterr().out, re.MULTILINE)


def test_help_teaches_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom fedmf.cli.app import run\ncode = run(sys.argv[1:])\n"
        "heavy = {'torch', 'ray', 'flwr', 'pandas', 'sklearn', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    environment = {**os.environ, "COLUMNS": "120"}
    cgd = ["--mechanism", "cgd", "--param", "lambda=0.9"]
    for arguments in (
        ["--help"],
        ["simulate", "--help"],
        [*["design", "--rounds", "100", "--max-participations", "5", "--min-separation", "20"], *cgd],
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Example" in done.stdout or "configs/digits.toml" in done.stdout or "cgd" in done.stdout
