"""Rows pushed by a program: the command's releases, refusals that cost nothing, keys, standard errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf import PrivateStream
from fedmf.errors import HorizonExceededError, LedgerError, ParticipationViolation
from fedmf.records import ledger as ledger_module
from fedmf.streaming import Handling, InputError, PrivateRelease, Settings

N, D = 12, 3
USERS = [f"u{i % 6}" for i in range(N)]
CAP: dict[str, Any] = {"max_participations": 2, "min_separation": 4}


def opened(path: Path, **more: Any) -> PrivateStream:
    return PrivateStream(path, **{**BUDGET, "dimension": D, "rounds": N, **CAP, **more})


@pytest.mark.parametrize(
    ("workloads", "second"),
    [
        (("average",), "full"),
        (("prefix",), "diagonal"),
        (("exponential:0.8", "window:3"), "full"),
        (("window:3",), "1,2"),
    ],
)
def test_releases_are_those_of_the_command(tmp_path: Path, workloads: tuple[str, ...], second: str) -> None:
    """Same rows, same key, every process of the stream taking four rows: bit for bit, statement as well."""
    x = sample(N, D)
    settings = Settings(**BUDGET, **CAP, rounds=N, user_column="user", workloads=workloads, second=second)
    whole = run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", x, USERS))
    got: list[PrivateRelease] = []
    for begin in range(0, N, 4):
        with opened(tmp_path / "pushed", workloads=workloads, second=second) as stream:
            assert stream.t == begin
            got += [stream.push(x[i], user=USERS[i]) for i in range(begin, begin + 4)]
            assert [stream.release(t).to_dict() for t in range(1, begin + 5)] == [r.to_dict() for r in got]
    assert [release.to_dict() for release in got] == releases(tmp_path / "out.jsonl")
    statement = json.loads((tmp_path / "pushed/statement.json").read_text())
    del whole["counts"]
    assert statement == json.loads((tmp_path / "state/statement.json").read_text()) == whole


def test_a_key_gets_its_release_again_and_costs_nothing(tmp_path: Path) -> None:
    x = sample(N, D)
    with opened(tmp_path / "a", seed=None) as stream:
        first = stream.push(x[0], user="ann", key="order 1")
        assert stream.push(x[0], user="ann", key="order 1").to_dict() == first.to_dict()
        bob = stream.push(x[1], user="bob", key="order 2")
    with opened(tmp_path / "a", seed=None) as stream:
        assert stream.push(x[1], user="bob", key="order 2").to_dict() == bob.to_dict()
        for row, user in ((x[2], "ann"), (x[0], "bob"), ([np.nan] * D, "ann")):
            with pytest.raises(
                ValueError, match=r"key .* must be new for a new row; got 'order 1', that of step 1"
            ):
                stream.push(row, user=user, key="order 1")
        assert stream.t == 2
        again = stream.push(x[0], user="cid")  # the same numbers without a key are another row
        assert again.t == 3
        assert not np.array_equal(again.first, first.first)


def test_a_key_that_was_refused_is_free(tmp_path: Path) -> None:
    x = sample(N, D)
    with opened(tmp_path / "a") as stream:
        stream.push(x[0], user="ann")
        with pytest.raises(ParticipationViolation):
            stream.push(x[1], user="ann", key="later")
        for i in range(1, 4):
            stream.push(x[i], user=f"u{i}")
        assert stream.push(x[1], user="ann", key="later").t == 5


def test_users_beyond_their_cap_and_rows_beyond_the_horizon_cost_nothing(tmp_path: Path) -> None:
    """The other steps have the bits of a stream in which nothing was refused."""
    x = sample(N, D)
    with opened(tmp_path / "plain") as stream:
        plain = [stream.push(x[i], user=USERS[i]).to_dict() for i in range(N)]
    with opened(tmp_path / "tried") as stream:
        tried = []
        for i in range(N):
            tried.append(stream.push(x[i], user=USERS[i]).to_dict())
            if i < N - 1:
                with pytest.raises(
                    ParticipationViolation, match=rf"user '{USERS[i]}' took part .*: [bk] \("
                ) as refusal:
                    stream.push(x[0], user=USERS[i])
                assert "\n" not in str(refusal.value)
        with pytest.raises(HorizonExceededError, match=r"t \(step\) must be at most n \(rounds\) = 12"):
            stream.push(x[0], user="new")
        statement = stream.statement()
    assert tried == plain
    assert (statement["rounds_released"], statement["actual_max_participations"]) == (N, 2)
    assert json.loads((tmp_path / "tried/operator.json").read_text())["steps"] == N


BAD = {
    "nan": [0.1, np.nan, 0.2],
    "infinite": [0.1, np.inf, 0.2],
    "text": [0.1, "0.2", 0.3],
    "truth": [0.1, True, 0.3],
    "nothing": [0.1, None, 0.3],
}
MISSHAPEN = {
    "short": [0.1, 0.2],
    "long": [0.1] * 4,
    "nested": [[0.1, 0.2, 0.3]],
    "matrix": np.zeros((3, 2)),
    "none": None,
    "number": 0.5,
    "array of nothing": np.array(0.5),
    "tensor of nothing": torch.tensor(0.5),
    "text": "0.1",
    "set": {0.1, 0.2, 0.3},
    "mapping": {"a": 0.1, "b": 0.2, "c": 0.3},
}


@pytest.mark.parametrize("bad", MISSHAPEN)
def test_a_row_of_another_shape_is_refused_and_costs_nothing(tmp_path: Path, bad: str) -> None:
    """Its shape is the program's, whatever a user's numbers are; the next row keeps its bits."""
    got = []
    for name in ("tried", "plain"):
        with opened(tmp_path / name) as stream:
            if name == "tried":
                with pytest.raises(ValueError, match=r"^x \(row\) must be 3 numbers; got [^\n]*$"):
                    stream.push(MISSHAPEN[bad], user="ann")
                with pytest.raises(ValueError, match="must be 3 numbers"):
                    stream.push_many([[0.1] * D, MISSHAPEN[bad]], users=["ann", "bob"])
                assert stream.t == 0
            got.append(stream.push([0.1] * D, user="ann").to_dict())
    assert got[0] == got[1]


@pytest.mark.parametrize("bad", BAD)
def test_a_row_that_cannot_be_read_is_a_zero_vector_and_nothing_tells(tmp_path: Path, bad: str) -> None:
    got = {}
    for name, row in (("bad", BAD[bad]), ("zero", [0.0] * D)):
        with opened(tmp_path / name) as stream:
            got[name] = [
                stream.push(values, user=u).to_dict() for values, u in ((row, "ann"), ([0.1] * D, "bob"))
            ]
            assert stream.counts()["zeroed"] == int(name == "bad")
    assert got["bad"] == got["zero"]
    statements = {(tmp_path / name / "statement.json").read_bytes() for name in got}
    assert len(statements) == 1


def test_a_refused_row_takes_no_step(tmp_path: Path) -> None:
    """With `Handling`, which the statement says is not covered; the stream goes on with the corrected row."""
    x = 0.1 * sample(N, D)
    with opened(tmp_path / "plain") as stream:
        plain = [stream.push(x[i], user=USERS[i]).to_dict() for i in range(4)]
    with opened(tmp_path / "strict", handling=Handling(clip=False, stop_at_faulty=True)) as stream:
        strict = []
        for i in range(4):
            for row in (BAD["nan"], [9.0] * D):
                with pytest.raises(InputError, match=f"^row {i + 1} .*It took no step and spent nothing"):
                    stream.push(row, user=USERS[i], key=f"k{i}")
            strict.append(stream.push(x[i], user=USERS[i], key=f"k{i}").to_dict())
    assert strict == plain
    assert "--stop-at-bad-row" in (tmp_path / "strict/statement.json").read_text()


def test_rows_of_any_library_have_the_same_bits(tmp_path: Path) -> None:
    x = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    forms = [x, x.tolist(), list(x), torch.from_numpy(x), list(torch.from_numpy(x)), iter(x.tolist())]
    got = []
    for number, row in enumerate(forms):
        with opened(tmp_path / str(number)) as stream:
            got.append(stream.push(row, user="ann").to_dict())
            assert stream.counts()["zeroed"] == 0
    assert all(release == got[0] for release in got)


@pytest.mark.parametrize("user", ["", None, 7, "\ud800"])
def test_users_are_text(tmp_path: Path, user: Any) -> None:
    with opened(tmp_path / "a") as stream:
        with pytest.raises(ValueError, match="user must be text"):
            stream.push([0.1] * D, user=user)
        with pytest.raises(ValueError, match=r"key \(of the row\) must be text"):
            stream.push([0.1] * D, user="ann", key=user if user is not None else 0)  # type: ignore[arg-type]
        assert stream.t == 0


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second opening and a fork are refused in one line; threads are served one after the other."""
    with opened(tmp_path / "a") as stream:
        with pytest.raises(LedgerError, match="is being written by another process"):
            opened(tmp_path / "a")
        told: list[PrivateRelease] = []

        def push(user: str) -> None:
            told.append(stream.push([0.1] * D, user=user))

        threads = [threading.Thread(target=push, args=(f"t{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(release.t for release in told) == list(range(1, 7))
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            try:
                stream.push([0.1] * D, user="forked")
            except BaseException as error:
                os.write(writing, str(error).encode())
            stream.close()
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert b"belongs to the process that opened it" in os.read(reading, 1000)
        os.close(reading)
        assert stream.push([0.1] * D, user="parent").t == 7
    with pytest.raises(LedgerError, match=r"is closed\. Open it again"):
        stream.push([0.1] * D, user="late")


def test_an_interrupted_push_ends_the_stream_and_the_next_opening_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose commit failed is open."""
    x = 0.1 * sample(N, D)
    with opened(tmp_path / "plain") as stream:
        plain = [stream.push(x[i], user=USERS[i]).to_dict() for i in range(3)]
    with opened(tmp_path / "a") as stream:
        first = stream.push(x[0], user=USERS[0]).to_dict()
        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, "_flush", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
            with pytest.raises(LedgerError, match=r"no space left.*releases nothing more") as failed:
                stream.push(x[1], user=USERS[1], key="k")
        for again in (lambda: stream.push(x[2], user=USERS[2]), stream.statement):
            with pytest.raises(LedgerError) as repeated:
                again()
            assert str(repeated.value) == str(failed.value)
    with opened(tmp_path / "a") as stream:
        assert stream.t == 1
        rest = [stream.push(x[i], user=USERS[i], key="k" * i).to_dict() for i in (1, 2)]
    assert [first, *rest] == plain


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as stream:
        stream.push([0.1] * D, user="ann", key="k")
    with pytest.raises(LedgerError, match=r"epsilon must be 8\.0 as when the stream"):
        opened(tmp_path / "a", epsilon=4.0)
    with pytest.raises(LedgerError, match=r"d \(dimension\) must be 3 .*; got 2"):
        opened(tmp_path / "a", dimension=2)
    with opened(tmp_path / "a") as stream, pytest.raises(ValueError, match="must be new for a new row"):
        stream.push([0.2] * D, user="ann", key="k")
    settings = Settings(**BUDGET, **CAP, rounds=N, user_column="user")
    run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", sample(4, D), USERS[:4]))
    with pytest.raises(LedgerError, match="it goes on with that command"):
        opened(tmp_path / "state")


#: Rate of false alarms of each Monte Carlo test as a whole: correct code would fail at one seed in 10⁶.
ALARMS = 1e-6


@pytest.mark.parametrize("workload", ["average", "prefix", "exponential:0.7", "window:3"])
def test_mean_and_covariance_have_no_bias(tmp_path: Path, workload: str) -> None:
    """2000 coordinates with the same course: their mean against the weighted moments of that course."""
    d, n = 2000, 8
    course = np.linspace(0.2, 1.0, n)
    zeta = 1.01 * float(np.sqrt(d))
    more = {"dimension": d, "rounds": n, "workloads": workload, "second": "diagonal", "norm_bound": zeta}
    more |= {"epsilon": 5000.0, "max_participations": 1, "min_separation": None}
    with opened(tmp_path / "a", **more) as stream:
        told = [stream.push(np.full(d, course[t]), user=str(t)) for t in range(n)]
        A = stream._run.plan.workloads[0].materialize()
    weights = A / A.sum(axis=1, keepdims=True)
    limit = stats.norm.ppf(1 - ALARMS / (4 * n))
    for t, release in enumerate(told):
        assert release.covariance is not None
        mean = float(weights[t] @ course)
        variance = float(weights[t] @ course**2) - mean**2
        for found, expected in ((release.mean, mean), (release.covariance, variance)):
            error = float(found.std(ddof=1)) / np.sqrt(d)
            assert abs(float(found.mean()) - expected) < limit * error


def test_a_stream_that_nobody_closes_ends_in_silence(tmp_path: Path) -> None:
    program = (
        "import fedmf; stream = fedmf.PrivateStream('state', epsilon=8, delta=1e-5, norm_bound=1, "
        "dimension=2, rounds=4, max_participations=4, min_separation=1, seed=1); "
        "stream.push([0.1, 0.2], 'somebody')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_row_of_a_table_is_taken_by_its_names_and_decimals_are_numbers(tmp_path: Path) -> None:
    asked: dict[str, Any] = {**BUDGET, "rounds": N, "columns": ["x", "y"]}
    frame = pd.DataFrame({"y": [0.5], "x": [0.25]})
    ways: list[Callable[[PrivateStream], Any]] = [
        lambda stream: stream.push({"x": 0.25, "y": 0.5}, "a"),
        lambda stream: stream.push(frame.iloc[0], "a"),
        lambda stream: stream.push_many([frame.iloc[0]], ["a"])[0],
        lambda stream: stream.push_many(frame, users=["a"])[0],
        lambda stream: stream.push([Decimal("0.25"), Decimal("0.5")], "a"),
    ]
    firsts = []
    for number, way in enumerate(ways):
        with PrivateStream(tmp_path / str(number), **asked) as stream:
            firsts.append(way(stream).first.tolist())
    assert firsts == [firsts[0]] * len(ways)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": "ab", "dimension": None}, "columns must be a list of names; got the text 'ab'"),
        ({"norm_bound": "1"}, r"zeta \(norm_bound\) must be a number; got '1'"),
        ({"norm_bound": True}, r"zeta \(norm_bound\) must be a number; got True"),
        ({"workloads": ["average", "prefix", "prefix"]}, "workload must be given once, or twice"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path / "state", **changes)
    opened(tmp_path / "lists", workloads=["average", "prefix"]).close()
