"""Streams without a horizon as a whole: the cap holds for life, they go on, and they say what they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import one_line
from support.covariance import covariance_fits
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf import PrivateStream
from fedmf.cli.app import run
from fedmf.errors import ParticipationViolation
from fedmf.factorization import identity
from fedmf.streaming import Settings, open_run
from fedmf.streaming.plans import unbounded
from fedmf.streaming.position import Releases

N, D = 40, 2
USERS = [f"u{i % 10}" for i in range(N)]
CAP: dict[str, Any] = {"max_participations": 3, "min_separation": 4, "user_column": "user", "bands": 3}
WORKLOADS = ["average", "prefix", "exponential:0.8", "window:5"]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4, 8, 16, … steps."""
    monkeypatch.setattr(unbounded, "FIRST", 4)
    monkeypatch.setattr(unbounded, "GROWTH", 2)


def asked(**more: Any) -> Settings:
    return Settings(**{**BUDGET, **CAP, "unbounded": True, **more})


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_goes_on_with_the_same_bits_and_holds_users_for_life(tmp_path: Path, workload: str) -> None:
    """Every user's fourth row is refused, in whichever segments the first three were."""
    x, settings = sample(N, D), asked(workloads=(workload,))
    source = write_rows(tmp_path / "rows.csv", x, USERS)
    whole = run_once(tmp_path, settings, source)
    assert (whole["counts"]["steps"], whole["counts"]["refused_users"]) == (30, 10)
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / "again").mkdir()
    for stop in (3, 4, 7, 20, 29, N):
        part = tmp_path / "part.csv"
        part.write_text("".join(lines[: stop + 1]))
        run_once(tmp_path / "again", settings, part)
    assert (tmp_path / "again/out.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert (tmp_path / "again/state/statement.json").read_bytes() == (
        tmp_path / "state/statement.json"
    ).read_bytes()
    (tmp_path / "again/out.jsonl").unlink()  # made again from what was committed
    run_once(tmp_path / "again", settings, source)
    assert (tmp_path / "again/out.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_a_service_has_no_horizon_if_it_says_none(tmp_path: Path) -> None:
    """The bits of the command, `release` of any step, and the cap refused in the command's words."""
    x = sample(N, D)
    run_once(tmp_path, asked(), write_rows(tmp_path / "rows.csv", x, USERS))
    options: dict[str, Any] = {
        **BUDGET,
        "dimension": D,
        "max_participations": 3,
        "min_separation": 4,
        "bands": 3,
    }
    for begin in (0, 11, 30):
        with PrivateStream(tmp_path / "pushed", **options) as stream:
            assert stream.t == begin
            for i in range(begin, {0: 11, 11: 30, 30: 30}[begin]):
                stream.push(x[i], user=USERS[i])
            told = [stream.release(t).to_dict() for t in range(1, stream.t + 1)]
            if begin == 30:
                with pytest.raises(ParticipationViolation, match="took part 3 times"):
                    stream.push(x[30], user=USERS[30])
    assert told == releases(tmp_path / "out.jsonl")


def test_what_was_spent_grows_with_rows_and_is_bounded_for_life(tmp_path: Path) -> None:
    """μ is √(m/k) of the planned one after m rows of the busiest user; the statement says there is no end."""
    source = write_rows(tmp_path / "rows.csv", sample(10, D), USERS[:10])
    statement = run_once(tmp_path, asked(), source)
    assert statement["rounds"] is None
    assert statement["rounds_source"] == "none: the stream has no horizon"
    assert (statement["segments"], statement["steps"]) == (2, 10)
    assert statement["mu_realised"] == pytest.approx(statement["mu_planned"] / 3**0.5, rel=1e-12)
    assert statement["epsilon_realised"] < statement["epsilon_planned"] <= 8
    assert statement["sensitivity_kind"] == "upper_bound"
    text = (tmp_path / "state/statement.txt").read_text()
    assert "8 for the whole life of the stream" in text
    assert "None" not in text
    assert "None" not in (tmp_path / "state/statement.html").read_text()


def test_noise_over_interruptions_is_that_of_the_plan(tmp_path: Path) -> None:
    """Each process has a key of its own, also within one segment; the matrix is that of the plan."""
    d, steps = 3000, 14
    lines = write_rows(tmp_path / "rows.csv", np.zeros((steps, d))).read_text().splitlines(keepends=True)
    settings = asked(seed=None, user_column=None, workloads=("prefix",), second="energy")
    for stop in (2, 4, 7, steps):
        (tmp_path / "part.csv").write_text("".join(lines[: stop + 1]))
        with open_run(tmp_path / "state", settings, tmp_path / "part.csv", tmp_path / "out.jsonl") as (
            run,
            reader,
        ):
            run.feed(reader)
            released, plan = run.state.releases(0, run.position.records).numbers[:, :d], run.plan
    C = np.zeros((steps, steps))
    assert isinstance(plan, unbounded.UnboundedPlan)
    for j, (start, stop) in enumerate([(0, 4), (4, 12), (12, steps)]):
        made = plan.mechanisms.of(j)
        C[start:stop, start:stop] = made.first.materialize()[: stop - start, : stop - start] / made.first_std
    noise = np.diff(released, axis=0, prepend=0)
    assert covariance_fits(noise, C, 1.0)
    assert not covariance_fits(1.2 * noise, C, 1.0), "a wrong sigma must be rejected"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_participations": None, "min_separation": None}, r"k \(max_participations\) must be given"),
        ({"min_separation": None}, r"b \(min_separation\) must be given"),
        ({"workloads": ("average", "window:3")}, "both of one kind"),
        ({"workloads": ("momentum:0.9",)}, "both of one kind"),
        ({"mechanisms": (identity(8),), "bands": None}, "must be named"),
        ({"mechanisms": ("square-root",), "bands": None}, "told by few numbers"),
        ({"mechanisms": ("blt",), "bands": None, "workloads": ("window:3",)}, "banded and Toeplitz"),
        ({"workloads": ("exponential:0.999999",)}, "must forget a row within"),
        ({"rounds": 5}, r"n \(rounds\) must be left out"),
        ({"method": "pp", "workloads": ("window:3",)}, "noise of its own"),
    ],
)
def test_what_has_no_bound_for_life_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    source = write_rows(tmp_path / "rows.csv", sample(5, D), USERS[:5])
    with pytest.raises(ValueError, match=message) as refusal:
        run_once(tmp_path, asked(**change), source)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "state").exists()


def test_a_mechanism_that_was_altered_in_the_state_is_refused(tmp_path: Path) -> None:
    """Of a later segment; the seal of a public key can be made again, the figures do not follow."""
    from fedmf.streaming.state import StreamState

    source = write_rows(tmp_path / "rows.csv", sample(14, D), USERS[:10] + USERS[:4])
    run_once(tmp_path, asked(), source)
    with StreamState.open(tmp_path / "state") as state:
        saved = state.stream_state()
        assert saved is not None
        assert len(saved["mechanisms"]) == 2
        saved["mechanisms"][1]["first_std"] *= 0.5
        state.open_era(bytes(range(32)))
        state.commit(state.position, Releases(0, np.empty((0, state.plan.width))), saved, [])
    with pytest.raises(ValueError, match=r"first_std of the stream's plan is .* follows"):
        run_once(tmp_path, asked(), source)


def test_the_command_has_no_horizon_on_a_pipe_or_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv", sample(9, D), USERS[:9])
    budget = "stream --norm-bound 1 --epsilon 8 --delta 1e-5 --seed 5 --bands 3 --user-column user"
    command = [*budget.split(), "--min-separation", "4", "--state", "state", "--output", "out.jsonl"]
    command += ["--columns", ",".join(f"x{i}" for i in range(D))]
    assert run([*command, "--input", "rows.csv", "--unbounded"]) == 2
    assert "k (max_participations) must be given" in one_line(capsys)
    command += ["--max-participations", "3"]
    with (tmp_path / "rows.csv").open("rb") as rows:
        before = os.dup(0)
        os.dup2(rows.fileno(), 0)
        try:
            assert run([*command, "--input", "-"]) == 0
        finally:
            os.dup2(before, 0)
            os.close(before)
    written = (tmp_path / "out.jsonl").read_bytes()
    assert written.count(b"\n") == 9
    assert run([*command, "--input", "rows.csv", "--unbounded"]) == 0  # the same stream, nothing new in it
    assert (tmp_path / "out.jsonl").read_bytes() == written
    capsys.readouterr()
    assert run(["account", "state", "--json", "--html", "page.html"]) == 0
    accounted = json.loads(capsys.readouterr().out)
    assert accounted.pop("records")["verdict"] == "whole as far as this copy knows"
    assert accounted == json.loads((tmp_path / "state/statement.json").read_text())
    page, written = (tmp_path / "page.html").read_text(), (tmp_path / "state/statement.html").read_text()
    said = '<p class="verdict">Record: whole as far as this copy knows.</p>'
    assert said in page
    assert said not in written  # a stream that is writing does not judge its own record
    assert [line for line in page.splitlines() if "verdict" not in line and line.strip()] == [
        line for line in written.splitlines() if "verdict" not in line and line.strip()
    ]
    assert run(["account", "state", "--full"]) == 0
    whole = capsys.readouterr().out
    assert (
        whole == f"Record: whole as far as this copy knows.\n{(tmp_path / 'state/statement.txt').read_text()}"
    )
    assert run(["account", "state"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    assert lines[0] == whole.splitlines()[1]
    assert "record whole as far as this copy knows" in lines[-1]
    assert lines[-1].endswith(": fedmf account state --full")
    assert run(["account", "state", "--users", "users.csv"]) == 2
