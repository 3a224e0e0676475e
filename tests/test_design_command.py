"""``fedmf design``: what scripts may rely on, the table, and errors that name the limit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import one_line

import fedmf
from fedmf.cli import design_picture
from fedmf.cli.app import run
from fedmf.figures import new_figure
from fedmf.mechanisms.design import DEFAULT_MECHANISMS, design, recommended
from fedmf.participation import Participation

DESIGN = ["design", "--rounds", "100", "--max-participations", "5", "--min-separation", "20"]


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_json_keeps_order_and_names_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["BandMF", "--mechanism", "dp-sgd", "--mechanism", "lambda-cgd", "--bands", "4"]
    assert run([*DESIGN, "--mechanism", *names, "--epsilon", "2", "--delta", "1e-5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert column(rows, "mechanism") == ["BandMF", "dp-sgd", "lambda-cgd"]
    fields = {
        "mechanism",
        "params",
        "sensitivity",
        "sensitivity_kind",
        "rmse",
        "max_se",
        "noise_multiplier",
        "epsilon",
        "delta",
        "memory_vectors",
    }
    for row in rows:
        assert row.keys() >= fields
        assert row["noise_multiplier"] == rows[0]["noise_multiplier"]


def test_users_and_users_per_round_give_the_participation_of_turns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["design", "--rounds", "240", "--users", "360", "--users-per-round", "36"]
    assert run([*given, "--mechanism", "identity", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["max_participations"], row["min_separation"]) == (24, 10)
    assert run([*given[:-2], "--mechanism", "identity"]) == 2
    assert "use --users and --users-per-round, or" in one_line(capsys)


def test_seven_mechanisms_are_ranked_and_compared_with_independent_noise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["design", "--rounds", "32", "--max-participations", "4", "--min-separation", "8"]
    assert run([*small, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(column(rows, "mechanism")) == sorted(DEFAULT_MECHANISMS)
    assert column(rows, "objective_error") == sorted(column(rows, "objective_error"))
    assert run(small) == 0
    first, heads, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "32 rounds, each user in at most 4 of them, at least 8 apart; workload prefix, zero-out"
    )
    assert heads.split("  ")[0] == "mechanism"
    rmse = dict(zip(column(rows, "mechanism"), column(rows, "rmse"), strict=True))
    gain = rows[0]["rmse"] / rmse["identity"] - 1
    assert f"−{-100 * gain:.0f} %" in lines[0]
    assert lines[-1].startswith(f"Recommended: {recommended(rows)['mechanism']}, ")
    assert run([*small, "--mechanism", "cgd"]) == 0
    assert "Recommended" not in capsys.readouterr().out


def test_all_mechanisms_are_the_seven_and_others_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["design", "--all", "--rounds", "16", "--max-participations", "2"]
    small += ["--min-separation", "8"]
    assert run([*small, "--json"]) == 0
    names = set(column(json.loads(capsys.readouterr().out), "mechanism"))
    assert names > {*DEFAULT_MECHANISMS, "bifr", "tree", "normalized-bisr"}
    assert "optimal-diagonal" not in names
    assert run([*small, "--mechanism", "cgd"]) == 2
    assert "must be omitted where mechanisms are named" in one_line(capsys)


def test_the_recommended_mechanism_is_the_fastest_of_nearly_the_smallest_error() -> None:
    """Those that optimize every entry do not count."""
    rows: list[dict[str, Any]] = []
    for name, error, time in [
        ("dense", 1.0, 90.0),
        ("banded", 1.01, 20.0),
        ("bisr", 1.14, 20.0),
        ("banded-toeplitz", 1.13, 20.0),
        ("bfr", 1.1, 30.0),
        ("cgd", 1.16, 10.0),
    ]:
        rows.append(
            {"mechanism": name, "objective_error": error, "nanoseconds_per_coordinate": time}
        )
    assert recommended(rows)["mechanism"] == "banded-toeplitz"
    assert recommended(rows[:2])["mechanism"] == "banded"
    assert recommended([{**rows[0], "mechanism": "mine"}])["mechanism"] == "mine"


def test_the_default_of_runs_is_recommended_where_the_benchmark_was_run() -> None:
    """In its settings, of which docs/results/benchmark.md has the accuracies."""
    for n, k, b in ((300, 10, 30), (120, 12, 10)):
        rows = design(Participation(n, k, b), ["cgd", "bisr", "blt", "banded-toeplitz"])
        assert recommended(rows)["mechanism"] == fedmf.Run().mechanism


def test_where_users_join_every_round_the_best_diagonal_is_recommended() -> None:
    rows = design(Participation(32, 32, 1), ["identity", "banded-toeplitz", "optimal-diagonal"])
    assert recommended(rows)["mechanism"] == "optimal-diagonal"
    assert rows[2]["objective_error"] < rows[0]["objective_error"] / 1.05


def test_all_texts_of_the_picture_are_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest bar has the longest label."""
    figure = new_figure(9, 3)
    monkeypatch.setattr(design_picture, "new_figure", lambda *_: figure)
    rows = design(Participation(32, 4, 8), ["bisr", "identity"], 8.0, 1e-3)
    design_picture.draw_comparison([*rows[:1], rows[0]], tmp_path / "all.svg", compared=True)
    texts = figure.get_tightbbox()
    assert 0 <= texts.x0 < texts.x1 <= figure.bbox_inches.x1


def test_users_and_a_budget_compare_cohorts_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The guarantee stands as ε, advantage and ρ."""
    users = ["design", "--rounds", "32", "--users", "80", "--users-per-round", "10"]
    assert run([*users, "--epsilon", "8", "--delta", "1e-5"]) == 0
    text = capsys.readouterr().out
    assert "advantage over guessing is at most 59.6 points; ρ = 1.388 (zCDP)" in text
    (row,) = design(
        Participation(32, 4, 8), ["banded-toeplitz"], 8.0, 1e-5, sampling="balls-in-bins"
    )
    assert f"{row['objective_error']:.5g}" in text
    assert "each user's bin" in text
    assert text.splitlines()[-1].startswith("Recommended: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0", "--delta", "1e-5"], "ε"),
        (["--epsilon", "nan", "--delta", "1e-5"], "ε"),
        (["--epsilon", "1", "--delta", "1"], "δ"),
        (["--epsilon", "1"], "delta must be given"),
        (["--memory-vectors", "-1"], "-1"),
        (["--workload", "median"], "workload"),
        (["--sampling", "lottery"], "--sampling"),
        (["--mechanism", "bisrr"], "Did you mean 'bisr'?"),
        (["--mechanism", "cgd", "--param", "lambda=1"], "must be in [0, 1)"),
        (["--mechanism", "cgd", "--param", "gamma=0.5"], "gamma"),
        (["--param", "lambda"], "must be name=number; got 'lambda'"),
        (["--mechanism", "bisr", "--bands", "101"], "between 1 and n=100; got 101"),
        (["--max-participations", "6"], "With b=20 at most k=5"),
        (["--rounds", "100000000", "--mechanism", "bsr"], "at most 10000000; got 100000000"),
        (["--rounds", "100000", "--mechanism", "dense"], "Use bisr or banded-toeplitz"),
    ],
    ids=range(15),
)
def test_bad_input_is_one_line_that_names_the_limit(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*DESIGN, *options, "--json"]) == 2
    assert message in one_line(capsys)


def test_silos_add_as_many_noises(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DESIGN, "--mechanism", "identity", "--silos", "4"]) == 0
    said = capsys.readouterr().out
    rmse = float(re.findall(r"identity\D+([\d.]+)", said)[0])
    both = re.findall(r"√4 = 2 times as large: ([\d.]+) with identity, instead of ([\d.]+)", said)
    assert [float(number) for number in both[0]] == pytest.approx([2 * rmse, rmse], rel=1e-3)
