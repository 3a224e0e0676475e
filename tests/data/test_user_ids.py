"""One person is one user, however the same id is written, stored or encoded."""

from __future__ import annotations

import contextlib
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.streams import BUDGET, run_once

from fedmf import PrivateStream
from fedmf.data import Dataset, canonical_id
from fedmf.data.cells import ids
from fedmf.errors import ParticipationViolation
from fedmf.streaming.settings import Settings

ELEVEN = 49176123450


def texts_of_ids(column: Any, place: str = "who") -> list[str | None]:
    return ids(column, place).to_pylist()


COMPOSED = ["Zoé", "José", "Noël"]
DECOMPOSED = [unicodedata.normalize("NFD", name) for name in COMPOSED]

SAME = {
    "1234567": (1234567, 1234567.0, "1234567", "1234567.0", " 1234567\n", Decimal("1234567.00")),
    str(ELEVEN): (
        ELEVEN,
        float(ELEVEN),
        f"{ELEVEN}.0",
        "4.917612345e+10",
        "\ufeff49176123450",
        Decimal(ELEVEN),
    ),
    "0": (0, -0.0, "0.", "0e+0"),
    "-5": (-5, -5.0, "-5.0"),
    "Jos\u00e9": ("Jose\u0301", " Jos\u00e9", "\ufeffJos\u00e9\r"),
    "007": ("007", "007.0", "007 "),
    "12e5": ("12e5",),
    "1.5": (1.5, "1.5", np.float32(1.5)),
}


def test_every_form_is_the_same_id() -> None:
    for text, forms in SAME.items():
        for value in forms:
            assert texts_of_ids(pa.array([value, None])) == [text, None], value
        assert canonical_id(text) == text


def test_a_float_is_an_id_as_far_as_it_is_exact() -> None:
    for kind in (np.float16, np.float32, np.float64):
        edge = float(2 ** (np.finfo(kind).nmant + 1))
        column = pa.array(np.array([edge - 1, edge, -edge, np.nan, np.inf, 3], dtype=kind))
        assert texts_of_ids(column) == [str(int(edge - 1)), None, None, None, None, "3"]


def test_large_integers_and_decimals_are_exact_and_large_floats_nobodys() -> None:
    large = 2**62 + 1
    assert texts_of_ids(pa.array([large]), "who") == [str(large)]
    assert texts_of_ids(pa.array([Decimal(10**20 + 1)]), "who") == [str(10**20 + 1)]
    assert [canonical_id(text) for text in ("1e+300", f"{2**53}.0", "9" * 5000)] == [
        "",
        "",
        "9" * 5000,
    ]


def test_what_no_record_can_hold_names_nobody() -> None:
    """A NUL, which ends an id in the ledger, and U+FFFD, which bytes become that are not UTF-8."""
    assert [canonical_id(text) for text in ("a\0b", "a\ufffd")] == ["", ""]
    assert texts_of_ids(pa.array(["a\0b", "\ufffd", "b"])) == [None, None, "b"]


def test_dictionaries_chunks_and_what_is_no_id() -> None:
    column = pa.array(["Zoé", DECOMPOSED[0], None, ""])
    assert texts_of_ids(column.dictionary_encode(), "who") == ["Zoé", "Zoé", None, None]
    categories = pa.array(pd.Series([7.0, np.nan, 7.0]).astype("category"))
    assert texts_of_ids(pa.chunked_array([categories, categories]), "who") == 2 * ["7", None, "7"]
    assert texts_of_ids(pa.nulls(2), "who") == [None, None]
    assert texts_of_ids(pa.chunked_array([], pa.string()), "who") == []
    times = pa.array([pd.Timestamp("2026-01-01")])
    for wrong in (pa.array([True]), pa.array([[1]]), times, pa.array([b"ann"])):
        with pytest.raises(
            ValueError, match="column 'who' must hold user ids, as strings or integers"
        ):
            texts_of_ids(wrong, "column 'who'")


#: Spellings of "a b" that no reader can tell apart.
UNSEEN = [
    "\u200ba b", "a\u200c b", "a \u200db", "a b\u2060", "\ufeffa b", "a\u00ad b", "\u200ea b\u200f",
    "\u202aa b\u202c", "\u2066a b\u2069", "a\u00a0b", "\u3000a\u2009b\u202f", "a b\ufe0f",
    "a b\U000e0100", "a\u034f b", "a\tb", "a b\x01", "a\u2800b",
]  # fmt: skip


def persons(reader: str, names: list[str], folder: Path) -> int:
    """Return how many people a reader takes these ids for."""
    frame = pd.DataFrame({"who": names, "x": 0.1, "y": 1.0})
    if reader == "frame":
        data = Dataset.from_frame(frame, user="who", label="y", user_list="from-data")
        return data.users
    settings = {**BUDGET, "rounds": 99}
    if reader == "push":
        with PrivateStream(folder / "pushed", columns=["x"], **settings) as stream:
            for name in names:
                with contextlib.suppress(ParticipationViolation):
                    stream.push([0.1], name)
            return stream.t
    path = folder / f"rows.{reader}"
    if reader == "csv":
        frame.to_csv(path, index=False)
    elif reader == "jsonl":
        frame.to_json(path, orient="records", lines=True, force_ascii=False)
    else:
        frame.to_parquet(path, index=False)
    asked = Settings(**settings, user_column="who", columns=("x",))
    return run_once(folder, asked, path)["counts"]["steps"]


@pytest.mark.parametrize("reader", ["csv", "jsonl", "parquet", "push", "frame"])
def test_characters_that_cannot_be_seen_make_nobody_a_second_person(
    tmp_path: Path, reader: str
) -> None:
    """Participations are counted for each person (FEDMF-2026-9)."""
    assert {canonical_id(name) for name in UNSEEN} == {"a b"}
    assert persons(reader, [*UNSEEN, "a b"], tmp_path) == 1


@pytest.mark.parametrize(("ending", "first"), [("parquet", 1234567), ("csv", ELEVEN)])
def test_five_people_take_five_steps_in_two_parts(tmp_path: Path, ending: str, first: int) -> None:
    """In the second part a missing id made pandas write all as floats (FEDMF-2026-9)."""
    people = [first + i for i in range(5)]
    for name, who in (("a", people), ("b", [*map(float, people), np.nan])):
        getattr(pd.DataFrame({"who": who, "x": 0.1}), f"to_{ending}")(
            tmp_path / f"{name}.{ending}", index=False
        )
    settings = Settings(**{**BUDGET, "rounds": 20, "user_column": "who", "columns": ("x",)})
    run_once(tmp_path, settings, tmp_path / f"a.{ending}")
    counts = run_once(tmp_path, settings, tmp_path / f"b.{ending}", first_row=6)["counts"]
    assert (counts["steps"], counts["beyond_k"], counts["zeroed"]) == (6, 5, 1)  # one row nobody's


def test_the_type_of_ids_is_refused_and_not_the_ids(tmp_path: Path) -> None:
    people = [2.0**60 + 2.0**10 * i for i in range(5)]
    rows = pd.DataFrame({"who": people, "x": 0.1})
    settings = Settings(**{**BUDGET, "rounds": 5, "user_column": "who", "columns": ("x",)})
    narrow = rows.astype({"who": np.float32})
    for who in (narrow, narrow.assign(who=np.float32(1.0))):
        who.to_parquet(tmp_path / "rows.parquet", index=False)
        with pytest.raises(ValueError, match="got float, which loses their last digits"):
            run_once(tmp_path, settings, tmp_path / "rows.parquet")
    assert not (tmp_path / "state").exists()
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    counts = run_once(tmp_path, settings, tmp_path / "rows.parquet")["counts"]
    assert (counts["steps"], counts["zeroed"], counts["without a user id"]) == (5, 5, 5)
    listed = {"user_list": [str(int(person)) for person in people], "classes": None}
    with pytest.raises(ValueError, match="double, which does not hold the id 115292150460684"):
        Dataset.from_arrays(np.zeros((5, 1)), np.zeros(5), np.array(people), **listed)
