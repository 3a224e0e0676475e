"""One person is one user, however the same id is written, stored or encoded."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.streams import BUDGET, run_once

import fedmf
from fedmf import PrivateStream
from fedmf.data import Table, canonical_id, read_table
from fedmf.data.memory import InMemoryDataset
from fedmf.data.rows.row_options import read_roster
from fedmf.data.rows.table_rows import TableColumns
from fedmf.data.user_ids import texts_of_ids
from fedmf.flower.boundary.enrolment import Enrolment
from fedmf.streaming.settings import Settings

ELEVEN = 49176123450
COMPOSED = ["Zoé", "José", "Noël"]
DECOMPOSED = [unicodedata.normalize("NFD", name) for name in COMPOSED]

SAME = {
    "1234567": (1234567, 1234567.0, "1234567", "1234567.0", b" 1234567\n", Decimal("1234567.00")),
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
    "Jos\u00e9": ("Jose\u0301", " Jos\u00e9", "\ufeffJos\u00e9\r", "Jose\u0301".encode()),
    "007": ("007", "007.0", b"007 "),
    "12e5": ("12e5",),
    "1.5": (1.5, "1.5", np.float32(1.5)),
}


@pytest.mark.parametrize("text", SAME)
def test_every_form_is_the_same_id(text: str) -> None:
    for value in SAME[text]:
        assert texts_of_ids(pa.array([value, None]), "who") == [text, None], value
    assert canonical_id(text) == text


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_float_is_an_id_as_far_as_it_is_exact(kind: type) -> None:
    edge = float(2 ** (np.finfo(kind).nmant + 1))
    column = pa.array(np.array([edge - 1, edge, -edge, np.nan, np.inf, 3], dtype=kind))
    assert texts_of_ids(column, "who") == [str(int(edge - 1)), None, None, None, None, "3"]


def test_large_integers_and_decimals_are_exact_and_large_floats_nobodys() -> None:
    large = 2**62 + 1
    assert texts_of_ids(pa.array([large]), "who") == [str(large)]
    assert texts_of_ids(pa.array([Decimal(f"{10**20 + 1}.00")]), "who") == [str(10**20 + 1)]
    assert [canonical_id(text) for text in ("1e+300", f"{2**53}.0", "9" * 5000)] == ["", "", "9" * 5000]


def test_dictionaries_chunks_and_what_is_no_id() -> None:
    column = pa.array(["Zoé", DECOMPOSED[0], None, "", b"\xff"], pa.binary())
    assert texts_of_ids(column.dictionary_encode(), "who") == ["Zoé", "Zoé", None, None, None]
    categories = pa.array(pd.Series([7.0, np.nan, 7.0]).astype("category"))
    assert texts_of_ids(pa.chunked_array([categories, categories]), "who") == 2 * ["7", None, "7"]
    assert texts_of_ids(pa.nulls(2), "who") == [None, None]
    assert texts_of_ids(pa.chunked_array([], pa.string()), "who") == []
    for wrong in (pa.array([True]), pa.array([[1]]), pa.array([pd.Timestamp("2026-01-01")])):
        with pytest.raises(ValueError, match="column 'who' must hold ids of users, as text or whole numbers"):
            texts_of_ids(wrong, "column 'who'")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("first", [1234567, ELEVEN])
def test_five_people_take_five_steps_in_two_parts(tmp_path: Path, first: int, ending: str) -> None:
    """In the second part a missing id made pandas write all as floats."""
    ids = [first + i for i in range(5)]
    parts = (ids, [*map(float, ids), np.nan])
    for name, who in zip("ab", parts, strict=True):
        rows, path = pd.DataFrame({"who": who, "x": 0.1}), tmp_path / f"{name}.{ending}"
        if ending == "jsonl":
            rows.to_json(path, orient="records", lines=True)
        else:
            getattr(rows, f"to_{ending}")(path, index=False)
    settings = Settings(**{**BUDGET, "rounds": 20, "user_column": "who"})
    run_once(tmp_path, settings, tmp_path / f"a.{ending}")
    counts = run_once(tmp_path, settings, tmp_path / f"b.{ending}", first_row=6)["counts"]
    assert (counts["steps"], counts["beyond_k"], counts["zeroed"]) == (6, 5, 1)  # one row nobody's


def test_people_who_are_pushed(tmp_path: Path) -> None:
    budget: dict[str, Any] = {**BUDGET, "rounds": 20, "columns": ["x"]}
    with PrivateStream(tmp_path / "st", **budget) as stream:
        stream.push_many(pd.DataFrame({"x": 0.1, "who": [ELEVEN, ELEVEN + 1]}), users="who")
        stream.push([0.1], user="José")
        again: tuple[Any, ...] = (float(ELEVEN), f"{ELEVEN + 1}.0", Decimal(ELEVEN), DECOMPOSED[1], " José")
        for who in again:
            with pytest.raises(ValueError, match="user"):
                stream.push_many(pd.DataFrame({"x": [0.1], "who": [who]}), users="who")
            with pytest.raises(ValueError, match="user"):
                stream.push([0.1], user=str(who))
        with pytest.raises(ValueError, match=r"user must be an id that is whole; got '1e\+300'"):
            stream.push([0.1], user="1e+300")
        assert stream.t == 3


def test_a_roster_with_a_mark_and_accents_of_either_kind(tmp_path: Path) -> None:
    people = ["ann", *COMPOSED, "12"]
    written = ["ann", *DECOMPOSED, "12.0"]
    rows = "who,a,y\n" + "".join(f"{p},{i}.5,{i % 2}\n" for p in written for i in range(4))
    (tmp_path / "rows.csv").write_text(rows, "utf-8")
    (tmp_path / "users.csv").write_text("\n".join(["who", *written]), "utf-8-sig")
    for roster in (people, written):
        (tmp_path / "users.txt").write_text("\n".join(roster), "utf-8-sig")
        assert read_roster(tmp_path / "users.txt", "who") == tuple(people)
        data = Table(
            path=str(tmp_path / "rows.csv"),
            feature_columns=("a",),
            label_column="y",
            class_names=("0", "1"),
            user_column="who",
            roster=str(tmp_path / "users.txt"),
            partition="natural",
            users=len(people),
            hold_out="examples",
        ).load()
        assert list(data.user_ids) == people
        assert data.sizes(np.arange(len(people))).min() > 0
    assert read_roster(tmp_path / "users.csv", "who") == tuple(people)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("José\nJose\u0301\n", "'José' more than once"),
        ("12\n12.0\n", "'12' more than once"),
        ("ann\n1e+300\n", "last digits are lost"),
    ],
)
def test_a_roster_that_names_a_person_twice(tmp_path: Path, text: str, message: str) -> None:
    for name, content in (("users.txt", text), ("users.csv", f"who\n{text}")):
        (tmp_path / name).write_text(content, "utf-8")
        with pytest.raises(
            ValueError, match=message if name.endswith("txt") or "once" in message else "row 2"
        ):
            read_roster(tmp_path / name, "who")


def test_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,who,y\n1,2,7,u\n")
    (tmp_path / "b.csv").write_text("y,who,b,a\nv,7.0,2,1\n")
    rows = read_table(tmp_path, TableColumns("y", user="who"))
    assert rows.features.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert (rows.users, rows.classes) == (("7",), ("u", "v"))
    (tmp_path / "c.csv").write_text("y,who,b,c\nv,7,2,1\n")
    with pytest.raises(ValueError, match=r"must be the same in all files, a, b; got b, c in .*c\.csv"):
        read_table(tmp_path, TableColumns("y", user="who"))


def test_data_sets_of_programs_and_enrolments(tmp_path: Path) -> None:
    features, labels = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)
    owned = [np.array([0]), np.array([1])]
    with pytest.raises(ValueError, match=r"canonical_id writes them; got '1\.0', not '1'"):
        InMemoryDataset(features, labels, owned, ["1", "1.0"], features, labels)
    keys = [ec.generate_private_key(ec.SECP256R1()).public_key() for _ in range(2)]
    texts = [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() for key in keys]
    (tmp_path / "keys").write_text(f"{texts[0]} Jose\u0301\n{texts[1]} 12.0\n", "utf-8-sig")
    for source in (tmp_path / "keys", dict(zip(texts, ["Jose\u0301", "12.0"], strict=True))):
        assert Enrolment.of(source).users == ("Jos\u00e9", "12")


@pytest.mark.parametrize("name", ["12.0", " ann", "Jose\u0301"])
def test_a_program_that_writes_ids_in_another_way_is_told(tmp_path: Path, name: str) -> None:
    aggregator = fedmf.PrivateAggregator(
        epsilon=8.0,
        delta=1e-5,
        clipping_norm=1.0,
        users=["bob", "cid", "dan", name],
        users_per_round=2,
        num_rounds=2,
        run_dir=tmp_path / "run",
    )
    with pytest.raises(ValueError, match=r"user ids must be as fedmf\.data\.canonical_id writes them; got"):
        aggregator.begin({"w": np.zeros(2, dtype=np.float32)})
    assert not (tmp_path / "run").exists()
