"""The command line: exit codes, one-line errors, and what scripts may rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.small_runs import small_config

from fedmf.cli.app import run
from fedmf.factorization.mechanisms.catalogue import names

REQUIRED_STATEMENT = {
    "unit", "adjacency", "mechanism", "params", "rounds", "max_participations", "min_separation",
    "realised_max_participations", "realised_min_separation", "sampling", "users", "cohort_size", "clip_norm",
    "noise_multiplier", "sensitivity", "sensitivity_kind", "delta", "epsilon_planned", "epsilon_realised",
    "not_covered",
}  # fmt: skip


def write_config(path: Path, **overrides: object) -> Path:
    settings = small_config(mechanism="bisr", bands=4, **overrides)
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.to_flat().items()))
    return path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("fedmf: ")
    return captured.err


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
    assert f"a worst user joined the rounds {rounds} (from 0)" in shown


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
        ("epsilonn=1", "unknown configuration key 'epsilonn'; did you mean 'epsilon'?"),
        ("clip_nrom=1", "did you mean 'clip-norm'?"),
        ("epsilon=0", "epsilon"),
        ("epsilon=-1", "epsilon"),
        ("epsilon=nan", "epsilon"),
        ("delta=0", "delta"),
        ("delta=1", "delta"),
        ("clip-norm=0", "clip-norm"),
        ("clip-norm=inf", "clip-norm"),
        ("max-participations=9", "k (max_participations)"),
        ("min-separation=40", "eligible"),
        ("cohort-size=25", "eligible"),
        ("mechanism=bisrr", "bisr"),
        ("mechanism-params=gamma=2", "gamma"),
        ("mechanism-params=lambda", "name=number"),
        ("bands=13", "bands (p)"),
        ("rounds=0", "rounds"),
        ("users=99999", "training examples"),
        ("dataset=cifar", "dataset"),
        ("private=1", "private"),
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
        (["simulate", good, "--out", str(finished)], "belongs to another run; resume it with --resume"),
        (["simulate", good, "--out", str(tmp_path / "other")], "is not empty"),
        (["simulate", good, "--out", str(tmp_path / "bad.toml" / "x")], "cannot create output directory"),
        (["simulate", good, "--out", "x", "--resume", "y"], "give one of them"),
        (["simulate", "--resume", str(tmp_path / "other")], "is not a run directory"),
        (["simulate", good, "--resume", str(finished), "--set", "epsilon=3"], "its epsilon is 8.0, not 3.0"),
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
    assert "cannot create output directory" in one_line(capsys)


def test_a_run_without_noise_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon_planned"] is None
    assert statement["noise_multiplier"] == 0
    assert "No privacy" in capsys.readouterr().out


DESIGN = ["design", "--rounds", "100", "--max-participations", "5", "--min-separation", "20"]


def test_design_json_keeps_the_order_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--mechanism",
        "bisr",
        "--mechanism",
        "identity",
        "--bands",
        "4",
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--json",
    ]
    assert run([*DESIGN, *options]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["mechanism"] for row in rows] == ["bisr", "identity"]
    fields = {"mechanism", "params", "sensitivity", "sensitivity_kind", "rmse", "max_se", "noise_multiplier",
              "epsilon", "delta", "memory_vectors"}  # fmt: skip
    assert all(row.keys() >= fields for row in rows)


def test_design_without_a_mechanism_ranks_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DESIGN, "--json"]) == 0
    errors = [row["rmse"] for row in json.loads(capsys.readouterr().out)]
    assert len(errors) >= 11
    assert errors == sorted(errors)
    assert run(DESIGN) == 0
    assert "banded-toeplitz" in capsys.readouterr().out


def test_design_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mechanism", "bisr", "--mechanism", "bsr", "--workload", "window:10"]
    assert run([*DESIGN, *options, "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "window:10" in capsys.readouterr().out
    for file, message in (("a.doc", "must end in"), ("none/a.png", "folder that exists")):
        assert run([*DESIGN, *options, "--plot", str(tmp_path / file)]) == 2
        assert message in one_line(capsys)


def test_design_without_matplotlib_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmf.cli.design_plot.find_spec", lambda name: None)
    assert run([*DESIGN, "--plot", str(tmp_path / "a.png")]) == 2
    assert "needs matplotlib" in one_line(capsys)


@pytest.mark.parametrize(
    "options",
    [
        ["--epsilon", "0", "--delta", "1e-5"],
        ["--memory-vectors", "-1"],
        ["--mechanism", "square-root", "--workload", "exponential:2"],
        *(["--epsilon", epsilon, "--delta", "1e-5"] for epsilon in ("-1", "nan", "inf")),
        *(["--epsilon", "1", "--delta", delta] for delta in ("0", "1", "-1", "nan", "2")),
        ["--epsilon", "1"],
        ["--mechanism", "bisrr"],
        ["--mechanism", "cgd", "--param", "lambda=1"],
        ["--mechanism", "cgd", "--param", "gamma=0.5"],
        ["--param", "lambda"],
        ["--mechanism", "bisr", "--bands", "101"],
        ["--max-participations", "6"],
        ["--workload", "median"],
        ["--sampling", "lottery"],
    ],
)
def test_design_refuses_bad_input_in_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DESIGN, *options, "--json"]) == 2
    one_line(capsys)


OUT_OF_RANGE = [
    *(((100, 5, 20), [name, "--bands", "101"], "between 1 and n=100; got 101")
      for name in ("bsr", "bisr", "banded", "banded-toeplitz", "banded-inverse", "normalized-bisr")),
    ((100, 5, 20), ["bisr", "--bands", "0"], "between 1 and n=100; got 0"),
    *(((100, 5, 20), [name, "--param", f"gamma={value}"], "gamma (exponent) must be in (0, 1]")
      for name in ("bifr", "bfr") for value in (0, -1, 1.5)),
    ((100, 5, 20), ["bifr", "--param", "gamma=nan"], "finite"),
    *(((100, 5, 20), [name, "--param", f"lambda={value}"], "must be in [0, 1)")
      for name in ("cgd", "normalized-cgd") for value in (1, 1.5, -0.1)),
    ((100, 5, 20), ["nu-ftrl", "--param", "nu=2"], "(0, 1]"),
    ((100, 5, 20), ["blt", "--param", "buffers=11"], "between 1 and 10; got 11"),
    ((100, 5, 20), ["kary-tree", "--param", "arity=1"], "at least 2"),
    ((100, 5, 20), ["bisr", "--param", "stamps=101"], "between 1 and 100"),
    ((100, 5, 20), ["banded-toeplitz", "--param", "taper=20"], "between 0 and 19"),
    ((100, 4, 40), ["bisr"], "With b=40 at most k=3"),
    *(((100_000, 5, 20_000), [name], "at most 2048 for dense; got 100000. Use banded-toeplitz")
      for name in ("dense", "normalized-dense")),
    *(((100_000, 5, 20_000), [name], "between 1 and 4096 for a tree; got 100000. Use banded-toeplitz")
      for name in ("tree", "kary-tree", "normalized-tree", "normalized-kary-tree")),
    ((3000, 1, 3000), ["banded", "--workload", "window:30"], "at most 2048 for a banded C and this workload; "
     "got 3000. Use banded-toeplitz"),
    ((20_000, 10, 10), ["banded", "--bands", "20"], "at most b=10 for a banded C of more than 10240 rounds; "
     "got 20. The sensitivity could not be bounded: use p <= b, or banded-toeplitz"),
    *(((100, 5, 20), [name, "--bands", str(p)], f"between 1 and n=100; got {p}")
      for name in ("one-parameter", "shifted-root", "banded", "banded-toeplitz", "banded-inverse")
      for p in (0, -3)),
    *(((100, 5, 20), [name, "--param", f"c={value}"], "c (")
      for name in ("one-parameter", "shifted-root") for value in (-5, "nan", "inf")),
    *(((100, 5, 20), [name, "--param", "stamps=10", "--bands", "30"], "between 1 and n=10; got 30")
      for name in ("bisr", "bsr", "banded", "banded-toeplitz", "banded-inverse")),
    ((100, 5, 20), ["tree", "--param", "full=2"], "0 (online) or 1 (full); got 2"),
    ((100, 0, 20), ["bisr"], "k (max_participations) must be an integer of at least 1; got 0"),
    ((100, 5, 0), ["bisr"], "b (min_separation) must be an integer of at least 1; got 0"),
    ((0, 5, 20), ["bisr"], "n (rounds) must be an integer of at least 1; got 0"),
    *(((10**8, 10, 10**6), [name], "n (rounds) must be at most 10000000; got 100000000. No mechanism")
      for name in names()),
    *(((10**6, 10, 10**4), [name], f"for {name}; got 1000000. Use bisr or banded-toeplitz")
      for name in ("blt", "banded", "banded-inverse", "normalized-blt", "normalized-bisr")),
    ((50_000, 2, 20_000), ["banded", "--bands", "64"], "n*p (coefficients) must be at most 2097152"),
]  # fmt: skip


@pytest.mark.parametrize(("contract", "options", "message"), OUT_OF_RANGE)
def test_design_names_the_limit_and_what_scales(
    contract: tuple[int, int, int], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = zip(("--rounds", "--max-participations", "--min-separation"), contract, strict=True)
    request = [str(part) for pair in sizes for part in pair]
    assert run(["design", *request, "--mechanism", *options, "--json"]) == 2
    assert message in one_line(capsys)


def test_help_teaches_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom fedmf.cli.app import run\ncode = run(sys.argv[1:])\n"
        "heavy = {'torch', 'ray', 'flwr', 'pandas', 'sklearn', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    environment = {**os.environ, "COLUMNS": "120"}
    for arguments in (
        ["--help"],
        ["simulate", "--help"],
        [*DESIGN, "--mechanism", "cgd", "--param", "lambda=0.9"],
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
