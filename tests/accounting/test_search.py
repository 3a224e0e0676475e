"""Refusals of `fedmf design --sampling`."""

from __future__ import annotations

import pytest

from fedmf.cli.app import run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cgd", "--sampling", "cyclic-poisson"], "banded strategies only"),
        (["cgd", "--sampling", "b-min-sep"], "banded strategies only"),
        (["bsr", "--bands", "9", "--sampling", "cyclic-poisson"], "at most n/k=8"),
        (
            ["bsr", "--bands", "8", "--workload", "window:3", "--sampling", "balls-in-bins"],
            "no negative entries",
        ),
        (
            ["bsr", "--sampling", "balls-in-bins", "--memory-vectors", "3"],
            "no limit on memory_vectors",
        ),
    ],
)
def test_design_refuses_what_the_accountants_do_not_cover(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = ["--rounds", "24", "--max-participations", "3", "--min-separation", "8"]
    budget = ["--epsilon", "2", "--delta", "1e-5", "--json"]
    assert run(["design", *contract, *budget, "--mechanism", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
