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
        ("privacy.clip-norm=0", "ζ (clip_norm) must lie in"),
        ("privacy.clip-norm=inf", "ζ (clip_norm) must lie in"),
        ("cohorts.max-participations=9", "k (max_participations)"),
        ("cohorts.min-separation=40", "eligible"),
        ("cohorts.users-per-round=25", "eligible"),
        ("mechanism.kind=bisrr", "bisr"),
        ("mechanism.params=gamma=2", "gamma"),
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
