"""The command line: exit codes, one-line errors, and what scripts may rely on."""

import inspect
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
from typer.models import CommandInfo

from fedmf.accounting import at_least, at_most
from fedmf.cli.app import application, run
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
def finished(pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(folder / "run.toml")
    assert run(["simulate", str(config), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_account_shows_how_epsilon_is_spread_over_users(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = json.loads((finished / "statement.json").read_text())
    assert run(["account", str(finished), "--full"]) == 0
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
    assert run(["account", str(finished), "--full"]) == 0
    text = capsys.readouterr().out
    assert text.startswith((finished / "statement.txt").read_text())
    assert "epsilon realised" in text
    assert "Does not cover" in text


def test_a_screen_is_the_end_of_a_run_and_of_account(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve lines: what a run is worth, to whom, how good the model is, and where the rest is."""
    assert run(["account", str(finished)]) == 0
    text = capsys.readouterr().out
    statement = json.loads((finished / "statement.json").read_text())
    lines = text.splitlines()
    assert len(lines) <= 12
    assert lines[0] == (finished / "statement.txt").read_text().splitlines()[1]
    said = {line[:13].strip(): line[13:].strip() for line in lines[1:]}
    assert said["epsilon"] == f"{at_least(statement['epsilon_planned'])} for all 12 rounds, delta 1e-05"
    assert said["unit"] == "user: 24, 6 a round, each in 3 rounds at most"
    assert said["mechanism"].startswith("bisr bands=4, noise multiplier 0.600229")
    accuracy = pd.read_parquet(finished / "metrics.parquet")["accuracy"].iloc[-1]
    assert f"accuracy {accuracy:.4g} after round 12" in said["quality"]
    median = at_least(statement["epsilon_realised_quantiles"]["0.5"])
    assert said["worst user"] == f"epsilon {at_least(statement['epsilon_realised'])} (not private)"
    assert said["median user"] == f"epsilon {median} (not private)"
    counts = [len(statement[name]) for name in ("assumptions", "not_covered", "secret")]
    left = "{} assumptions, {} things not covered, {} secrets to keep".format(*counts)
    whole = "record whole as far as this copy knows"
    assert said["statement"] == f"{whole}; {left}: fedmf account {finished} --full"


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


def test_odd_numbers_and_places_are_one_line(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "run.toml")
    Path("rows.csv").write_text("a,b\n0.1,0.2\n0.3,0.1\n")
    Path("text.npy").write_text("no array")
    Path("empty.csv").touch()
    huge = "9" * 25
    stream = ["stream", "--input", "rows.csv", "--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5"]
    restate = [
        *["restate", "--rounds", "4", "--max-participations", "1", "--min-separation", "4"],
        *["--noise-multiplier", "1", "--delta", "1e-5"],
    ]
    plan = ["simulate", "run.toml", "--dry-run"]
    cases = [
        ([*stream, "--every", huge], "R (every) must be a whole number in 1..2147483647"),
        ([*stream, "--rounds", huge], "n (rounds) must be a whole number in 1..10000000"),
        ([*stream, "--norm-bound", "1e308"], "zeta (norm bound) must lie in 1e-100..1e+100"),
        ([*stream, "--norm-bound", "1e-320"], "zeta (norm bound) must lie in 1e-100..1e+100"),
        ([*stream, "--norm-bound", "nan"], "zeta (norm bound) must lie in"),
        ([*stream, "--epsilon", "1e308"], "ε (privacy loss) must be at most 1e+100"),
        ([*stream, "--output", "/proc/fedmf.jsonl"], "output (file) must be writable; got /proc/fedmf.jsonl"),
        ([*stream, "--restored-from-backup"], "needs --state DIR"),
        ([*restate, "--rounds", huge, "--mechanism", "bisr"], "n (rounds) must be at most 10000000"),
        ([*restate, "--strategy", "none.npy"], "none.npy cannot be read: No such file or directory."),
        ([*restate, "--strategy", "text.npy"], "must be a file of numpy.save with one array of real numbers"),
        ([*restate, "--mechanism", "☃"], "got '☃'. fedmf design lists them."),
        ([*plan, "--set", f"cohorts.rounds={2**31 - 1}"], "n (rounds) must be a whole number in 1..10000000"),
        ([*plan, "--total-epsilon", "nan"], "go together"),
        ([*plan, "--with", "none", "--total-epsilon", "9"], "--dry-run starts nothing"),
        ([*plan, "--prepare"], "--dry-run starts nothing"),
        (["simulate", "run.toml", "--out", "run", "--tensorboard", "rows.csv"], "got the file rows.csv"),
        (["design", "--rounds", "9", "--trace", "empty.csv", "--size", "1"], "columns user, time; got none."),
        (["audit", "run.toml", "--canaries", huge], "16<=x<=10000000"),
        (["audit", "run.toml", "--seed", "-1"], "x>=0"),
        (["keygen", ""], ". exists already"),
    ]
    for arguments, message in cases:
        assert run(arguments) == 2, arguments
        assert message in one_line(capsys), arguments
    assert not Path("run").exists()


def test_files_from_windows_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, trace = write_config(tmp_path / "run.toml"), tmp_path / "trace.csv"
    hours = "".join(f"{user},{3600 * hour}\n" for user in "abc" for hour in range(24))
    for file, text in ((config, config.read_text()), (trace, "user,time\n" + hours)):
        file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert render_toml(load_run(config)) == write_config(tmp_path / "again.toml").read_text()
    plan = ["design", "--rounds", "5", "--size", "1", "--mechanism", "identity", "--json"]
    assert run([*plan, "--trace", str(trace)]) == 0, capsys.readouterr().err


def test_what_is_no_run_of_a_statement_is_not_called_damaged(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", str(finished), "--publish", str(tmp_path / "public")]) == 0
    other = tmp_path / "other"
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--out", str(other), "--prepare"]) == 0
    capsys.readouterr()
    for directory, message in (
        (tmp_path / "none", "none is not a run directory: it has no ledger.sqlite."),
        (other, "the record has 0 rounds; the statement says 12."),
    ):
        assert run(["verify", str(tmp_path / "public" / "statement.json"), "--run", str(directory)]) == 2
        shown = one_line(capsys)
        assert message in shown
        assert "damaged" not in shown


def test_cuda_without_a_gpu_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU, so asking for one is no error")
    config = write_config(tmp_path / "run.toml")
    assert run(["simulate", str(config), "--device", "cuda", "--out", str(tmp_path / "run")]) == 2
    assert "needs an NVIDIA GPU" in one_line(capsys)
    assert run(["simulate", str(config), "--device", "cuda", "--dry-run"]) == 2
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


def test_a_terminal_that_cannot_show_epsilon_ends_nothing() -> None:
    plan = ["--rounds", "9", "--max-participations", "1", "--min-separation", "9", "--mechanism", "identity"]
    done = subprocess.run(
        [sys.executable, "-m", "fedmf", "design", *plan, "--epsilon", "1", "--delta", "1e-5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u03b5 = 1" in done.stdout


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


@pytest.mark.parametrize("command", application.registered_commands, ids=lambda command: command.name)
def test_help_shows_the_docstring_whole_an_example_and_what_every_argument_is(
    command: CommandInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(text: str) -> str:
        return " ".join(re.sub("[╭╮╰╯─│]", " ", text).split())

    assert command.callback is not None
    monkeypatch.setenv("COLUMNS", "600")
    assert run([str(command.name), "--help"]) == 0
    shown = words(capsys.readouterr().out)
    for line in str(inspect.getdoc(command.callback)).splitlines():
        assert words(line) in shown  # `[trials]` would be swallowed as markup
    for parameter in inspect.signature(command.callback).parameters.values():
        assert words(parameter.default.help) in shown
    assert f"Example: fedmf {command.name} " in shown


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
