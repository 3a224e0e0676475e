"""``fedmf design``: what scripts may rely on, and errors that name the limit."""

import json
from pathlib import Path

import pytest
from support.command_line import one_line

from fedmf.cli.app import run
from fedmf.mechanisms.errors import Objective

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


def test_design_refuses_bad_input_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options in [
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
    ]:
        assert run([*DESIGN, *options, "--json"]) == 2
        one_line(capsys)


OUT_OF_RANGE = [
    *(((100, 5, 20), [name, "--bands", "101"], "between 1 and n=100; got 101")
      for name in ("bsr",)),
    ((100, 5, 20), ["bisr", "--bands", "0"], "between 1 and n=100; got 0"),
    *(((100, 5, 20), [name, "--param", f"gamma={value}"], "gamma (exponent) must be in (0, 1]")
      for name in ("bifr",) for value in (0,)),
    ((100, 5, 20), ["bifr", "--param", "gamma=nan"], "finite"),
    *(((100, 5, 20), [name, "--param", f"lambda={value}"], "must be in [0, 1)")
      for name in ("cgd",) for value in (1,)),
    ((100, 5, 20), ["nu-ftrl", "--param", "nu=2"], "(0, 1]"),
    ((100, 5, 20), ["blt", "--param", "buffers=11"], "between 1 and 10; got 11"),
    ((100, 5, 20), ["kary-tree", "--param", "arity=1"], "between 2 and 4096; got 1"),
    ((100, 5, 20), ["bisr", "--param", "stamps=101"], "between 1 and n=100; got 101"),
    ((100, 5, 20), ["banded-toeplitz", "--param", "taper=20"], "between 0 and 19"),
    ((100, 4, 40), ["bisr"], "With b=40 at most k=3"),
    *(((100_000, 5, 20_000), [name], f"at most 2048 for {name}; got 100000. Use bisr or banded-toeplitz")
      for name in ("dense",)),
    *(((100_000, 5, 20_000), [name], f"at most 4096 for {name}; got 100000. Use bisr or banded-toeplitz")
      for name in ("tree",)),
    ((3000, 1, 3000), ["banded", "--workload", "window:30"], "at most 2048 for a banded C and this workload; "
     "got 3000. Use banded-toeplitz"),
    ((20_000, 10, 10), ["banded", "--bands", "20"], "at most b=10 for a banded C of more than 10240 rounds; "
     "got 20. The sensitivity could not be bounded: use p <= b, or banded-toeplitz"),
    *(((100, 5, 20), [name, "--bands", str(p)], f"between 1 and n=100; got {p}")
      for name in ("one-parameter",)
      for p in (0,)),
    *(((100, 5, 20), [name, "--param", f"c={value}"], "c (")
      for name in ("one-parameter",) for value in (-5,)),
    *(((100, 5, 20), [name, "--param", "stamps=10", "--bands", "30"], "between 1 and n=10; got 30")
      for name in ("bisr",)),
    ((100, 5, 20), ["tree", "--param", "full=2"], "an integer between 0 and 1; got 2"),
    ((100, 0, 20), ["bisr"], "k (max_participations) must be an integer of at least 1; got 0"),
    ((100, 5, 0), ["bisr"], "b (min_separation) must be an integer of at least 1; got 0"),
    ((0, 5, 20), ["bisr"], "n (rounds) must be an integer of at least 1; got 0"),
    *(((10**8, 10, 10**6), [name], "n (rounds) must be at most 10000000; got 100000000. No mechanism")
      for name in ("bsr",)),
    *(((10**6, 10, 10**4), [name], f"for {name}; got 1000000. Use bisr or banded-toeplitz")
      for name in ("blt",)),
    *(((10**6 + 1, 10, 10**4), [name], f"at most 1000000 for {name}; got 1000001. Use bisr")
      for name in ("banded-inverse",)),
    ((50_000, 2, 20_000), ["banded", "--bands", "64"], "n*p (coefficients) must be at most 2097152"),
]  # fmt: skip


def test_design_names_the_limit_and_what_scales(capsys: pytest.CaptureFixture[str]) -> None:
    for contract, options, message in OUT_OF_RANGE:
        sizes = zip(("--rounds", "--max-participations", "--min-separation"), contract, strict=True)
        request = [str(part) for pair in sizes for part in pair]
        assert run(["design", *request, "--mechanism", *options, "--json"]) == 2
        assert message in one_line(capsys)


def test_the_table_and_its_order_follow_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["design", "--rounds", "8", "--max-participations", "1", "--min-separation", "8"]
    for objective, label in (("max", "MaxSE"), ("last", "last SE"), ("weights:1,3", "weighted RMSE")):
        assert run([*short, "--objective", objective, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["objective"] for row in rows} == {Objective.parse(objective).text}
        errors = [row["objective_error"] for row in rows]
        assert errors == sorted(errors)
        assert "dense" in [row["mechanism"] for row in rows] or objective == "last"
        best = rows[0]
        assert best["rmse"] <= best["max_se"]
        assert objective != "max" or best["objective_error"] == best["max_se"]
        options = ["--mechanism", "bsr", "--objective", objective]
        assert run([*short, *options]) == 0
        heads = next(line for line in capsys.readouterr().out.splitlines() if "mechanism" in line)
        assert heads.index(label) < heads.index("RMSE" if label == "MaxSE" else "MaxSE")
    for wrong, message in (("mse", "must be rmse, max, last"), ("weights:1,0", "there is no minimum")):
        assert run([*short, "--mechanism", "dense", "--objective", wrong]) == 2
        assert message.lower() in one_line(capsys).lower()


def test_rows_for_learning_rates_come_with_learning_rates(capsys: pytest.CaptureFixture[str]) -> None:
    for workload, wanted in (("prefix", False), ("prefix*linear", True)):
        short = ["--rounds", "8", "--max-participations", "1", "--min-separation", "8", "--json"]
        assert run(["design", *short, "--workload", workload]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert ("rated-bfr" in [row["mechanism"] for row in rows]) == wanted
