"""Many rows at once, tables in and out, rows by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.streams import BUDGET, sample

from fedmf import PrivateStream
from fedmf.errors import HorizonExceededError, ParticipationViolation
from fedmf.streaming import Handling, InputError
from fedmf.streaming.run import StreamRun

N, D = 12, 3
USERS = [f"u{i % 6}" for i in range(N)]
NAMES = ["speed", "load", "heat"]
CAP: dict[str, Any] = {"max_participations": 2, "min_separation": 4}


def opened(path: Path, **more: Any) -> PrivateStream:
    return PrivateStream(path, **{**BUDGET, "columns": NAMES, "rounds": N, **CAP, **more})


class Interchanged:
    """A table that knows the older interchange alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __dataframe__(self, *arguments: Any, **more: Any) -> Any:
        return self._table.__dataframe__(*arguments, **more)


def test_tables_of_any_library_and_rows_by_name_have_the_same_bits(tmp_path: Path) -> None:
    x = 0.4 * sample(N, D)
    frame = pd.DataFrame(x, columns=NAMES)
    frame.insert(1, "who", USERS)
    frame["order"] = [f"o{i}" for i in range(N)]
    forms: dict[str, Any] = {
        "pandas": (frame, "who", "order"),
        "shuffled": (frame[["order", "heat", "speed", "who", "load"]], "who", "order"),
        "arrow": (pa.table(frame), "who", "order"),
        "interchange": (Interchanged(pa.table(frame)), "who", "order"),
        "array": (x, USERS, list(frame["order"])),
        "dictionaries": (frame[NAMES].to_dict("records"), USERS, list(frame["order"])),
        "without keys": (frame[NAMES], USERS, None),
    }
    got = {}
    for name, (table, users, keys) in forms.items():
        with opened(tmp_path / name) as stream:
            got[name] = [release.to_dict() for release in stream.push_many(table, users, keys)]
            assert stream.counts()["zeroed"] == 0
    with opened(tmp_path / "singly") as stream:
        singly = [
            stream.learn_one({**dict(zip(NAMES, row, strict=True)), "more": 1.0}, user=user).to_dict()
            for row, user in zip(x.tolist(), USERS, strict=True)
        ]
    assert all(releases == singly for releases in got.values())


def test_a_block_is_one_commit_and_none_is_larger_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = 0.4 * sample(N, D)
    counts = []
    whole = StreamRun._commit
    monkeypatch.setattr(StreamRun, "_commit", lambda run, *a: (counts.append(len(a)), whole(run, *a))[1])
    got = []
    for most, commits in ((4096, 1), (5, 3)):
        monkeypatch.setattr("fedmf.streaming.run._MOST_ROWS", most)
        counts.clear()
        with opened(tmp_path / str(most)) as stream:
            got.append([release.to_dict() for release in stream.push_many(x, USERS)])
            assert len(counts) == commits
    assert got[0] == got[1]


def test_keys_tell_releases_again_also_in_part(tmp_path: Path) -> None:
    x, keys = 0.4 * sample(N, D), [f"k{i}" for i in range(N)]
    with opened(tmp_path / "a") as stream:
        first = stream.push_many(x[:7], USERS[:7], keys[:7])
    with opened(tmp_path / "a") as stream:
        both = stream.push_many(x, USERS, keys)
        assert [release.t for release in both] == list(range(1, N + 1))
        assert [a.to_dict() for a in both[:7]] == [b.to_dict() for b in first]
        assert stream.push(x[8], USERS[8], "k8").to_dict() == both[8].to_dict()
        for rows, users, given in ((x[:1], ["other"], keys[:1]), (x[1:2], USERS[1:2], keys[:1])):
            with pytest.raises(ValueError, match="must be new for a new row; got 'k0', that of step 1"):
                stream.push_many(rows, users, given)


def test_a_block_that_is_refused_has_cost_nothing(tmp_path: Path) -> None:
    """Whatever is wrong with one of its rows; later steps have the bits of a stream that never saw it."""
    x = 0.4 * sample(N + 1, D)
    frame = pd.DataFrame(x[:2], columns=NAMES)
    wrong: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (x[:3], ["a", "b", "a"], None, ParticipationViolation, r"b \(min_separation\)"),
        (x[:9], ["a", *"bcd", "a", *"efg", "a"], None, ParticipationViolation, r"k \(max_participations\)"),
        (x, [f"v{i}" for i in range(N + 1)], None, HorizonExceededError, r"12 are left, for 13 rows"),
        (x[:2], ["a", "b"], ["k", "k"], ValueError, "got 'k' twice"),
        (x[:2], ["a"], None, ValueError, r"users \(of the rows\) must be 2; got 1"),
        (x[:2], ["a", "b"], ["k"], ValueError, r"keys \(of the rows\) must be 2; got 1"),
        (x[:2], ["a", 3], None, ValueError, "user must be text"),
        (x[:2], "who", None, ValueError, "must be a table for a column 'who'"),
        (frame, "who", None, ValueError, "column 'who' is missing"),
        (frame.assign(heat="warm"), ["a", "b"], None, ValueError, "column 'heat' must hold numbers"),
        (frame[NAMES[:2]], ["a", "b"], None, ValueError, "column 'heat' is missing"),
        ([x[0], x[1][:2]], ["a", "b"], None, ValueError, "must be 3 numbers; got 2"),
        ([{"weight": 1.0}], ["a"], None, ValueError, "without any of its columns"),
    ]
    with opened(tmp_path / "plain") as stream:
        plain = [release.to_dict() for release in stream.push_many(x[:N], USERS)]
    with opened(tmp_path / "tried") as stream:
        for rows, users, keys, kind, text in wrong:
            with pytest.raises(kind, match=text):
                stream.push_many(rows, users, keys)
            assert stream.t == 0
        assert stream.push_many([], []) == []
        assert [release.to_dict() for release in stream.push_many(x[:N], USERS)] == plain
        assert stream.counts()["rows"] == N


def test_numbers_that_cannot_be_read_are_zero_vectors(tmp_path: Path) -> None:
    """An empty cell, a missing name and NaN alike; with `Handling` the block stops before the first."""
    x = 0.4 * sample(4, D)
    frame = pd.DataFrame(x, columns=NAMES)
    frame.loc[2, "load"] = np.nan
    users = ["a", "b", "c", "d"]
    zeros = x.copy()
    zeros[2] = 0.0
    lacking = frame.to_dict("records")
    del lacking[2]["load"]
    got = []
    for name, rows in (("frame", frame), ("zeros", zeros), ("lacking", lacking)):
        with opened(tmp_path / name) as stream:
            got.append([release.to_dict() for release in stream.push_many(rows, users)])
            assert stream.counts()["zeroed"] == int(name != "zeros")
    assert got[0] == got[1] == got[2]
    with opened(tmp_path / "strict", handling=Handling(stop_at_faulty=True)) as stream:
        with pytest.raises(InputError, match=r"row 3 .*It took no step"):
            stream.push_many(frame, users, keys=list("wxyz"))
        assert stream.t == 2
        again = stream.push_many(x, users, keys=["w", "x", "y2", "z"])
        assert [release.t for release in again] == [1, 2, 3, 4]


def test_releases_as_a_table(tmp_path: Path) -> None:
    x = 0.4 * sample(N, D)
    with opened(tmp_path / "a") as stream:
        told = stream.push_many(x, USERS)
        table = stream.table()
        part = stream.table(3, 5, density=True).to_pandas()
        for first, last in ((0, 3), (5, 4), (1, N + 1)):
            with pytest.raises(ValueError, match="must be within"):
                stream.table(first, last)
    frame = table.to_pandas()
    assert list(frame["t"]) == list(range(1, N + 1))
    assert list(frame["mean:load"]) == [release.mean[1] for release in told]
    assert frame["covariance:speed:heat"].iloc[-1] == told[-1].covariance[0, 2]
    assert frame["standard_error:covariance:speed:heat"].iloc[-1] == told[-1].covariance_standard_error[0, 2]
    assert list(part["t"]) == [3, 4, 5]
    assert part["density_covariance:heat:heat"].iloc[-1] == pytest.approx(told[4].gaussian().covariance[2, 2])
    assert pa.table(table).equals(table)  # by __arrow_c_stream__
