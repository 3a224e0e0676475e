"""Pushed rows: the bits of the command, each row once, and errors that cost nothing."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf import PrivateStream
from fedmf.data import read_schema
from fedmf.errors import (
    ConfigError,
    HorizonExceededError,
    LedgerError,
    ParticipationViolation,
)
from fedmf.ledger import ledger as ledger_module
from fedmf.streaming import PrivateRelease, Settings, StreamRun

N = 12
D = 3
USERS = [f"u{i % 6}" for i in range(N)]
NAMES = ["speed", "load", "heat"]
CAP: dict[str, Any] = {"max_participations": 2, "min_separation": 4}


def opened(path: Path, **more: Any) -> PrivateStream:
    named = {} if "columns" in more or "schema" in more else {"dimension": D}
    return PrivateStream(path, **{**BUDGET, **named, "rounds": N, **CAP, **more})


def shown(release: PrivateRelease) -> dict[str, Any]:
    return json.loads(json.dumps(release.to_dict()))


@pytest.mark.parametrize(
    ("workloads", "second"), [(("average",), "full"), (("exponential:0.8", "window:3"), "1,2")]
)
def test_releases_are_those_of_the_command(
    tmp_path: Path, workloads: tuple[str, ...], second: str
) -> None:
    """Same rows, same key, every process of the stream taking four rows: bit for bit, statement as
    well.
    """
    x = sample(N, D)
    settings = Settings(
        **BUDGET, **CAP, rounds=N, user_column="user", workloads=workloads, second_moment=second
    )
    whole = run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", x, USERS), raw=True)
    got: list[PrivateRelease] = []
    for begin in range(0, N, 4):
        more = {"workloads": workloads, "second_moment": second, "columns": ("x0", "x1", "x2")}
        with opened(tmp_path / "pushed", **more) as stream:
            assert stream.t == begin
            got += [stream.push(x[i], user=USERS[i]) for i in range(begin, begin + 4)]
            assert [shown(stream.release(t)) for t in range(1, begin + 5)] == [
                shown(r) for r in got
            ]
    assert [shown(release) for release in got] == releases(tmp_path / "out.jsonl")
    read = [PrivateRelease.from_dict(line) for line in releases(tmp_path / "out.jsonl")]
    assert [shown(release) for release in read] == [shown(release) for release in got]
    statement = json.loads((tmp_path / "pushed/statement.json").read_text())
    del whole["counts"]
    assert statement == json.loads((tmp_path / "state/statement.json").read_text()) == whole


def test_a_key_gets_its_release_again_and_costs_nothing(tmp_path: Path) -> None:
    x = sample(N, D)
    with opened(tmp_path / "a", seed=None) as stream:
        first = stream.push(x[0], user="ann", key="order 1")
        assert shown(stream.push(x[0], user="ann", key="order 1")) == shown(first)
        bob = stream.push(x[1], user="bob", key="order 2")
    with opened(tmp_path / "a", seed=None) as stream:
        assert shown(stream.push(x[1], user="bob", key="order 2")) == shown(bob)
        for row, user in ((x[2], "ann"), (x[0], "bob"), ([np.nan] * D, "ann")):
            with pytest.raises(
                ValueError, match=r"must be new .* got 'order 1', the key of step 1"
            ):
                stream.push(row, user=user, key="order 1")
        both = stream.push_many(
            x[:4], ["ann", "bob", "cid", "dan"], ["order 1", "order 2", "a", "b"]
        )
        assert [release.t for release in both] == [1, 2, 3, 4]
        again = stream.push(x[0], user="eve")  # the same numbers without a key are another row
        assert again.t == 5
        assert shown(again)["sum"] != shown(first)["sum"]
        with pytest.raises(ParticipationViolation):
            stream.push(x[1], user="eve", key="later")
        assert stream.push(x[1], user="fay", key="later").t == 6  # a key that was refused is free


def test_refusals_cost_nothing(tmp_path: Path) -> None:
    """Users beyond their cap, rows beyond the horizon, rows of another shape: the other steps have
    the bits of a stream in which nothing was refused.
    """
    x = sample(N, D)
    unfit: list[Any] = [
        [0.1, 0.2],
        [0.1] * 4,
        [[0.1, 0.2, 0.3]],
        np.zeros((3, 2)),
        None,
        0.5,
        np.array(0.5),
        torch.tensor(0.5),
        "0.1",
        {0.1, 0.2, 0.3},
        {"a": 0.1, "b": 0.2, "c": 0.3},
    ]
    with opened(tmp_path / "plain") as stream:
        plain = [shown(stream.push(x[i], user=USERS[i])) for i in range(N)]
    with opened(tmp_path / "tried") as stream:
        tried = []
        for i in range(N):
            tried.append(shown(stream.push(x[i], user=USERS[i])))
            if i < N - 1:
                with pytest.raises(
                    ParticipationViolation, match=rf"user '{USERS[i]}' took part .*: [bk] \("
                ):
                    stream.push(x[0], user=USERS[i])
                with pytest.raises(ValueError, match=r"^x \(row\) must be 3 numbers; got [^\n]*$"):
                    stream.push(unfit[i % len(unfit)], user="ann")
        with pytest.raises(
            HorizonExceededError, match=r"t \(step\) must be at most n \(rounds\) = 12"
        ):
            stream.push(x[0], user="new")
        statement = stream.statement()
    assert tried == plain
    assert (statement["rounds_released"], statement["actual_max_participations"]) == (N, 2)
    assert json.loads((tmp_path / "tried/operator.json").read_text())["steps"] == N


BAD = {
    "nan": np.nan,
    "infinite": np.inf,
    "text": "0.2",
    "truth": True,
    "nothing": None,
    "huge": 10**400,
}


@pytest.mark.parametrize("bad", BAD)
def test_an_invalid_row_is_a_zero_vector_and_nothing_tells(tmp_path: Path, bad: str) -> None:
    got = {}
    for name, row in (("bad", [0.1, BAD[bad], 0.2]), ("zero", [0.0] * D)):
        with opened(tmp_path / name) as stream:
            got[name] = [
                shown(stream.push(v, user=u)) for v, u in ((row, "ann"), ([0.1] * D, "bob"))
            ]
            assert stream.counts()["zeroed"] == int(name == "bad")
    assert got["bad"] == got["zero"]
    assert len({(tmp_path / name / "statement.json").read_bytes() for name in got}) == 1


def test_rows_of_any_library_have_the_same_bits(tmp_path: Path) -> None:
    x = np.array([0.25, 0.5, 0.125], dtype=np.float32)
    series = pd.Series(x, index=NAMES)
    forms: list[Callable[[PrivateStream], Any]] = [
        *(
            lambda s, form=form: s.push(form, "ann")
            for form in (x, x.tolist(), torch.from_numpy(x), series)
        ),
        lambda s: s.push(list(torch.from_numpy(x)), "ann"),
        lambda s: s.push({**series.to_dict(), "more": 1.0}, "ann"),
        lambda s: s.push([Decimal(str(part)) for part in x.tolist()], "ann"),
        lambda s: s.push_many(pd.DataFrame([series]), users=["ann"])[0],
        lambda s: s.push_many(x[None], users=["ann"])[0],
    ]
    got = []
    for number, push in enumerate(forms):
        with opened(tmp_path / str(number), columns=NAMES) as stream:
            got.append(shown(push(stream)))
            assert stream.counts()["zeroed"] == 0
    assert all(release == got[0] for release in got)


def test_a_block_is_one_commit_and_none_is_larger_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = 0.4 * sample(N, D)
    counts = []
    got = []
    whole = StreamRun._commit
    monkeypatch.setattr(
        StreamRun, "_commit", lambda run, *a: (counts.append(len(a)), whole(run, *a))[1]
    )
    for most, commits in ((4096, 1), (5, 3)):
        monkeypatch.setattr("fedmf.streaming.stream_run._MOST_ROWS", most)
        counts.clear()
        with opened(tmp_path / str(most)) as stream:
            got.append([shown(release) for release in stream.push_many(x, USERS)])
            assert len(counts) == commits
    assert got[0] == got[1]


def test_a_block_that_is_refused_has_cost_nothing(tmp_path: Path) -> None:
    """Whatever is wrong with one of its rows; later steps have the bits of a stream that never saw
    it.
    """
    x = 0.4 * sample(N + 1, D)
    frame = pd.DataFrame(x[:2], columns=NAMES)
    wrong: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (x[:3], ["a", "b", "a"], None, ParticipationViolation, r"b \(min_separation\)"),
        (
            x[:9],
            ["a", *"bcd", "a", *"efg", "a"],
            None,
            ParticipationViolation,
            r"k \(max_participations\)",
        ),
        (
            x,
            [f"v{i}" for i in range(N + 1)],
            None,
            HorizonExceededError,
            r"12 are left, for 13 rows",
        ),
        (x[:2], ["a", "b"], ["k", "k"], ValueError, "got 'k' twice"),
        (x[:2], ["a"], None, ValueError, r"users \(of the rows\) must be 2; got 1"),
        (x[:2], ["a", "b"], ["k"], ValueError, r"keys \(of the rows\) must be 2; got 1"),
        (x[:2], ["a", 3], None, ValueError, "user must be a non-empty string"),
        (x[:2], ["a", ""], None, ValueError, "user must be a non-empty string"),
        (x[:2], ["a", "\ud800"], None, ValueError, "user must be a string that UTF-8 can encode"),
        (x[:2], ["a", "b"], ["k", 3], ValueError, r"key \(of the row\) must be a non-empty string"),
        (x[:2], "who", None, ValueError, "must be a table for a column 'who'"),
        (frame, "who", None, ValueError, "column 'who' is missing"),
        (
            frame.assign(heat="warm"),
            ["a", "b"],
            None,
            ValueError,
            "column 'heat' must hold numbers",
        ),
        (frame[NAMES[:2]], ["a", "b"], None, ValueError, "column 'heat' is missing"),
        ([x[0], x[1][:2]], ["a", "b"], None, ValueError, "must be 3 numbers; got shape"),
        ([{"weight": 1.0}], ["a"], None, ValueError, "a mapping without its columns"),
    ]
    with opened(tmp_path / "plain", columns=NAMES) as stream:
        plain = [shown(release) for release in stream.push_many(x[:N], USERS)]
    with opened(tmp_path / "tried", columns=NAMES) as stream:
        for rows, users, keys, kind, text in wrong:
            with pytest.raises(kind, match=text):
                stream.push_many(rows, users, keys)
            assert stream.t == 0
        assert stream.push_many([], []) == []
        assert [shown(release) for release in stream.push_many(x[:N], USERS)] == plain
        assert stream.counts()["rows"] == N
    with (
        opened(tmp_path / "unnamed") as stream,
        pytest.raises(ValueError, match="open the stream with columns="),
    ):
        stream.push_many(frame, ["a", "b"])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second opening and a fork are refused in one line; threads are served one after the
    other.
    """
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
        child = os.fork()
        if child == 0:
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


def test_a_push_is_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = ledger_module._flush
    monkeypatch.setattr(ledger_module, "_flush", lambda c: (flushed.append(1), real(c)))
    with opened(tmp_path / "a") as stream:
        stream.push([0.1] * D, "ann")
        flushed.clear()
        monkeypatch.setattr(os, "fsync", lambda _: flushed.append(2))
        stream.push([0.1] * D, "bob", key="k")
        assert flushed == [1]
        monkeypatch.undo()


def test_an_interrupted_push_ends_the_stream_and_the_next_opening_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose commit failed is open."""
    x = 0.1 * sample(N, D)
    with opened(tmp_path / "plain") as stream:
        plain = [shown(stream.push(x[i], user=USERS[i])) for i in range(3)]
    with opened(tmp_path / "a") as stream:
        first = shown(stream.push(x[0], user=USERS[0]))
        with monkeypatch.context() as patch:
            patch.setattr(
                ledger_module, "_flush", lambda *_: (_ for _ in ()).throw(OSError("no space left"))
            )
            with pytest.raises(
                LedgerError, match=r"no space left.*releases nothing more"
            ) as failed:
                stream.push(x[1], user=USERS[1], key="k")
        for again in (lambda: stream.push(x[2], user=USERS[2]), stream.statement):
            with pytest.raises(LedgerError) as repeated:
                again()
            assert str(repeated.value) == str(failed.value)
    with opened(tmp_path / "a") as stream:
        assert stream.t == 1
        rest = [shown(stream.push(x[i], user=USERS[i], key="k" * i)) for i in (1, 2)]
    assert [first, *rest] == plain


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as stream:
        stream.push([0.1] * D, user="ann", key="k")
    with pytest.raises(ConfigError, match=r"epsilon must be 8\.0 as when the stream"):
        opened(tmp_path / "a", epsilon=4.0)
    with pytest.raises(ConfigError, match=r"d \(dimension\) must be 3 .*; got 2"):
        opened(tmp_path / "a", dimension=2)
    settings = Settings(**BUDGET, **CAP, rounds=N, user_column="user")
    run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", sample(4, D), USERS[:4]))
    with pytest.raises(ConfigError, match="it was started by `fedmf stream`"):
        opened(tmp_path / "state", columns=["x0", "x1", "x2"])
    for changes, message in (
        ({"columns": "ab"}, "columns must be a list of names; got the string 'ab'"),
        ({"release_every": 2}, "or None to release every row; got 2"),
        ({"clip_norm": 0.0}, r"ζ \(clip_norm\) must lie in"),
        ({"workloads": ["average", "prefix", "prefix"]}, "workload must be given once, or twice"),
        ({"schema": "schema.toml"}, "schema must come from fedmf.data.read_schema"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(tmp_path / "other", **changes)
        assert not (tmp_path / "other").exists()


SCHEMA = """
[columns.user]
kind = "user"
[columns.speed]
kind = "number"
lower = 0
upper = 40
center = 15
scale = 10
{more}
[columns.city]
kind = "category"
categories = ["Graz", "Linz"]
[columns.note]
kind = "ignore"
"""


def cells() -> list[dict[str, Any]]:
    """Rows as JSON has them, some of them bad."""
    rows: list[dict[str, Any]] = [
        {"user": f"u{i}", "speed": 10.1 + i / 7, "city": ("Graz", "Linz")[i % 2], "note": None}
        for i in range(N)
    ]
    rows[1] |= {"speed": None}
    rows[4] |= {"city": "Wien"}
    rows[6] |= {"speed": 1e300}
    rows[9] |= {"city": None}
    return rows


@pytest.mark.parametrize("more", ["nullable = true", "fill = 22", ""])
def test_rows_of_a_schema_have_the_bits_of_the_command(tmp_path: Path, more: str) -> None:
    """Mappings as JSON lines, tables as Parquet; a row without a user is nobody's."""
    (tmp_path / "schema.toml").write_text(SCHEMA.format(more=more))
    schema = read_schema(tmp_path / "schema.toml")
    rows = cells()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = {"speed": pa.float64(), "note": pa.null()}
    columns = {n: pa.array([row[n] for row in rows], kinds.get(n, pa.string())) for n in rows[0]}
    columns["user"] = pa.array([None, *(row["user"] for row in rows[1:])])
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    budget = {name: value for name, value in BUDGET.items() if name != "clip_norm"}
    norm = schema.encoding().norm_bound
    settings = Settings(**budget, clip_norm=norm, rounds=N, user_column="user", schema=schema)
    for name in ("rows.jsonl", "rows.parquet"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        statement = run_once(folder, settings, tmp_path / name, raw=True)
        asked = {**budget, "schema": schema, "rounds": N}
        with PrivateStream(folder / "pushed", **asked) as stream:
            if name == "rows.jsonl":
                got = [stream.push(row, user=row["user"]) for row in rows[:5]]
                got += stream.push_many(rows[5:], [row["user"] for row in rows[5:]])
            else:
                got = stream.push_many(pa.table(columns), "user")
            assert stream.counts() == statement.pop("counts")
            assert stream.statement() == statement
        assert [shown(release) for release in got] == releases(folder / "out.jsonl")
    assert statement["users_participated"] == N - 1
    assert (got[-1].valid_share is not None) == (more == "nullable = true")
    for given in ([1.0, 2.0, 3.0], "7", None):
        with (
            PrivateStream(tmp_path / "x", **asked) as stream,
            pytest.raises(ValueError, match="must be a mapping"),
        ):
            stream.push(given, "ann")  # type: ignore[arg-type]
    with PrivateStream(tmp_path / "y", **asked) as stream:
        for change, message in (
            (
                lambda t: t.append_column("weight", t["speed"]),
                "columns must all be declared .*'weight'",
            ),
            (lambda t: t.drop_columns(["note"]), "columns must each occur once"),
        ):
            with pytest.raises(ValueError, match=message):
                stream.push_many(change(pa.table(columns)), "user")
        assert stream.t == 0
        some = pa.table(columns).to_pandas().iloc[[1, 4, 5]]  # whose index pandas calls a column
        assert len(stream.push_many(some, "user")) == 3


HOSTILE: list[object] = [
    None,
    "",
    "old",
    float("nan"),
    math.inf,
    True,
    10**5000,
    -(10**400),
    b"7",
    [7],
    {"speed": 7},
    "\ud800",
    "7_0",
    "1e999",
    "0x10",
    9 * "9" * 9999,
    np.float32("nan"),
    np.array([1.0, 2.0]),
    object(),
    "\n",
    "٣x",
]


@pytest.mark.parametrize("more", ["nullable = true", ""])
def test_no_cell_rejects_anything(tmp_path: Path, more: str) -> None:
    """Whatever a row holds, it takes its step; what is released differs by its own contribution
    alone.
    """
    (tmp_path / "schema.toml").write_text(SCHEMA.format(more=more))
    schema = read_schema(tmp_path / "schema.toml")
    asked = {"epsilon": 8.0, "delta": 1e-5, "seed": 3, "rounds": N, "schema": schema}
    rows = [{"speed": 12.0, "city": "Graz"} for _ in range(3)]
    with PrivateStream(tmp_path / "good", **asked) as stream:
        good = [stream.push(row, f"u{i}") for i, row in enumerate(rows)]
    for n, cell in enumerate(HOSTILE):
        bad = {"speed": cell, "city": "Graz"} if n % 2 else {"speed": 12.0, "city": cell}
        with PrivateStream(tmp_path / str(n), **asked) as stream:
            found = [stream.push(row, f"u{i}") for i, row in enumerate([rows[0], bad, rows[2]])]
        pairs = zip(good, found, strict=True)
        shares = [(a.sum - b.sum) * a.t for a, b in pairs]  # type: ignore[operator]
        np.testing.assert_allclose(shares[0], 0 * shares[0], atol=1e-9)
        np.testing.assert_allclose(shares[1], shares[2], atol=1e-9)
        count = [schema.encoding().norm_bound * 3**-0.25] if more else []
        np.testing.assert_allclose(shares[1], [-0.3, 1, 0, *count], atol=1e-9)
