"""What a user gives wrong is one line that says so, with exit code 2, and nothing is left behind."""

import re
from pathlib import Path

import pytest
import typer
from support.command_line import one_line
from support.small_runs import write_config

from fedmf.cli import app
from fedmf.cli.app import run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert run(["simulate", str(write_config(folder / "run.toml")), "--out", str(folder / "run")]) == 0
    return folder / "run"


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
            "[privacy] kind must be one of user-level, none; got 'nothing'",
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
    huge = "9" * 25
    stream = ["stream", "--input", "rows.csv", "--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5"]
    stream += ["--each-row-a-user", "--columns", "a,b"]
    plan = ["simulate", "run.toml", "--dry-run"]
    cases = [
        ([*stream, "--every", huge], "R (every) must be a whole number in 1..2147483647"),
        ([*stream, "--rounds", huge], "n (rounds) must be a whole number in 1..10000000"),
        ([*stream, "--norm-bound", "1e308"], "zeta (norm bound) must lie in 1e-100..1e+100"),
        ([*stream, "--norm-bound", "1e-320"], "zeta (norm bound) must lie in 1e-100..1e+100"),
        ([*stream, "--norm-bound", "nan"], "zeta (norm bound) must lie in"),
        ([*stream, "--epsilon", "1e308"], "ε (privacy loss) must be at most 1e+100"),
        ([*stream, "--output", "/proc/fedmf.jsonl"], "output (file) must be writable; got /proc/fedmf.jsonl"),
        ([*plan, "--set", f"cohorts.rounds={2**31 - 1}"], "n (rounds) must be a whole number in 1..10000000"),
    ]
    for arguments, message in cases:
        assert run(arguments) == 2, arguments
        assert message in one_line(capsys), arguments
    assert not Path("run").exists()


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


def test_errors_are_caught_by_the_click_that_typer_uses() -> None:
    """Newer versions of typer have a copy of their own, whose errors are not those of the package click."""
    assert issubclass(typer.BadParameter, app._CLICK.ClickException)
    assert issubclass(app._CLICK.NoArgsIsHelpError, app._CLICK.ClickException)
    package = Path(app.__file__).parents[1]
    assert not [
        path
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) click\b", path.read_text(), re.M)
    ]
