"""Texts: what they become, whose they are, and that one user's text moves neither others nor a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data import FederatedDataset, Table
from fedmf.data.rows.cells import TextColumn, name_columns
from fedmf.data.tokens import BpeVocabulary, WordVocabulary, padded, public_vocabulary, tagged

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)
PUBLIC = "the cat sat on the mat . the dog sat too\n"
NAMES = [f"u{u}" for u in range(8)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A public text, a roster, eight users with three texts each in every form."""
    (tmp_path / "public.txt").write_text(PUBLIC)
    (tmp_path / "users.txt").write_text("\n".join(NAMES))
    rows = [
        {"user": name, "text": f"the {name} cat {i} sat on a mat", "label": "yn"[(u + i) % 2],
         "tags": "D N N N V P D N"}
        for u, name in enumerate(NAMES) for i in range(3)
    ]  # fmt: skip
    (tmp_path / "pristine.json").write_text(json.dumps(rows))
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet", index=False)
    (tmp_path / "notes").mkdir()
    for row in rows:
        folder = tmp_path / "notes" / row["user"]
        folder.mkdir(exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.txt").write_text(row["text"])
    (tmp_path / "notes/u7.txt").write_text("a file of its own")
    return tmp_path


def options(place: Path, path: str, **fields: Any) -> Table:
    declared = {"roster": str(place / "users.txt"), "users": 6, "test_fraction": 0.25, "length": 8}
    declared |= {"partition": "natural", "user_column": "user", "text_column": "*.txt"}
    return Table(path=str(place / path), **{**declared, **fields})


CASES: dict[str, dict[str, Any]] = {
    "folder": {"path": "notes"},
    "words of a folder": {"path": "notes", "vocabulary": "words", "vocabulary_path": "public.txt"},
    "next tokens": {"path": "rows.csv", "text_column": "text", "most_sequences": 5},
    "pieces of Parquet": {
        "path": "rows.parquet", "text_column": "text", "vocabulary": "bpe", "vocabulary_path": "public.txt",
        "vocabulary_size": 270,
    },
    "labels": {"path": "rows.csv", "text_column": "text", "label_column": "label", "class_names": ("y", "n")},
    "tags": {
        "path": "rows.parquet", "text_column": "text", "tag_column": "tags", "class_names": ("D", "N", "V"),
        "vocabulary": "words", "vocabulary_path": "public.txt", "lower_case": True,
    },
    "made-up users": {"path": "rows.csv", "text_column": "text", "partition": "iid", "user_column": ""},
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def value_of_case(place: Path, case: dict[str, Any]) -> Table:
    fields = {**case}
    if "vocabulary_path" in fields:
        fields["vocabulary_path"] = str(place / fields["vocabulary_path"])
    if not fields.get("user_column", "user"):
        fields["roster"] = ""
    return options(place, fields.pop("path"), **fields)


def examples(dataset: FederatedDataset, user: int) -> tuple[torch.Tensor, torch.Tensor]:
    return dataset.examples(np.array([user]))


@every_case
def test_every_form_is_a_data_set_of_tokens(case: dict[str, Any], place: Path) -> None:
    data = value_of_case(place, case)
    assert data.undeclared() == ()
    dataset = data.load()
    assert len(dataset.user_ids) == 6
    features, labels = dataset.examples(np.arange(6))
    assert (features.dtype, labels.dtype) == (torch.int64, torch.int64)
    assert features.shape[1:] == dataset.test_features.shape[1:] == (8,)
    assert 0 <= int(features.min()) <= int(features.max()) < dataset.vocabulary
    assert dataset.structure.features.bound == dataset.vocabulary
    assert int(labels.max()) < (dataset.classes or dataset.vocabulary)
    listed = {entry.name: entry for entry in data.public_inputs()}
    assert data.public_tokens().digest in listed["vocabulary"].value
    assert not any("not for private runs" in entry.source for entry in listed.values())
    again = value_of_case(place, case).load()
    assert torch.equal(again.examples(np.arange(6))[0], features)


def changed(place: Path, path: str, victim: str, text: bytes) -> None:
    """Another text for the second row of a user, all others as at first."""
    table = pd.read_json(place / "pristine.json", dtype=False)
    row = table.index[table["user"] == victim][1]
    if path == "notes":
        (place / "notes" / victim / "1.txt").write_bytes(text)
    elif path.endswith("parquet"):
        texts = [value.encode() for value in table["text"]]
        texts[row] = text
        table.assign(text=texts).to_parquet(place / path, index=False)
    else:
        lines = table.to_csv(index=False).encode().split(b"\n")
        lines[1 + row] = victim.encode() + b"," + text.replace(b"\n", b" ") + b",y,D"
        (place / path).write_bytes(b"\n".join(lines))


HOSTILE = [
    b"another text altogether",
    b"",
    b"\xff\xfe\x00 no UTF-8 \x80",
    b"x" * 5000,
    "\u202e\U0001f600 signs ".encode() * 40,
    b'"open quotes, and, commas',
]


@every_case
def test_a_users_text_moves_nobody_else(case: dict[str, Any], place: Path) -> None:
    data = value_of_case(place, case)
    clean, vocabulary = data.load(), data.public_tokens()
    natural = data.partition == "natural"
    victim = clean.user_ids[2] if natural else "u3"
    rows_before = [examples(clean, user) for user in range(6)]
    for text in HOSTILE:
        changed(place, case["path"], victim, text)
        hostile = data.load()
        assert data.public_tokens().digest == vocabulary.digest
        assert list(hostile.user_ids) == list(clean.user_ids)
        assert hostile.structure == clean.structure
        different = []
        for user, before in enumerate(rows_before):
            mine = examples(hostile, user)
            if not all(torch.equal(a, b) for a, b in zip(mine, before, strict=True)):
                different.append(user)
        tests_moved = not torch.equal(hostile.test_features, clean.test_features)
        if natural:
            assert different == [2] or (text != HOSTILE[0] and different == [])
            assert not tests_moved
        else:  # the text is one user's, or held out
            assert len(different) + tests_moved <= 1


@laws
@given(line=st.binary(max_size=120), user=st.sampled_from(["u3", "u3,", "", "u99"]))
def test_whatever_a_line_holds_other_lines_are_read_as_before(
    line: bytes, user: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    head, tail = b"user,text\nu1,one two\nu2,two three\n", b"u4,four five\n"
    columns = [("text_column", "text"), ("user_column", "user")]
    (folder / "rows.csv").write_bytes(head + user.encode() + b"," + line.replace(b"\n", b"") + b"\n" + tail)
    rows = name_columns(folder / "rows.csv", columns)
    texts = [cell for chunk in rows["text"] for cell in chunk.to_pylist()]
    assert len(texts) == 4
    assert [texts[place] for place in (0, 1, 3)] == [b"one two", b"two three", b"four five"]
    names = ("u1", "u2", "u4")
    assert TextColumn.of(rows["user"]).among(names)[[0, 1, 3]].tolist() == [0, 1, 2]


def test_vocabularies_of_users_rows_are_for_runs_without_privacy(place: Path) -> None:
    for name in ("words", "bpe"):
        data = options(place, "notes", vocabulary=name)
        assert data.undeclared() == ("vocabulary_path",)
        assert "not for private runs" in data.public_inputs()[3].source
        assert data.load().vocabulary > 2
    assert options(place, "notes").undeclared() == ()
    without = options(place, "rows.csv", text_column="text", label_column="label", roster="")
    assert without.undeclared() == ("class_names", "roster")
    assert without.load().classes == 2


def test_a_text_keeps_its_first_tokens_and_its_label(place: Path) -> None:
    data = value_of_case(place, CASES["labels"])
    dataset = data.load()
    features, labels = examples(dataset, 0)
    name = dataset.user_ids[0]
    table = pd.read_csv(place / "rows.csv")
    mine = table[table["user"] == name]
    assert bytes((features[0] - 1).tolist()) == mine["text"].iloc[0].encode()[:8]
    assert [("y", "n")[label] for label in labels] == mine["label"].tolist()
    changed(place, "rows.csv", name, b"text")
    (place / "rows.csv").write_text((place / "rows.csv").read_text().replace(",text,y,", ",text,other,"))
    assert len(examples(data.load(), 0)[0]) == 2


def test_tags_stand_at_the_first_token_of_their_piece() -> None:
    pieces = [np.array([5, 6]), np.array([], dtype=np.int64), np.array([7]), np.array([8])]
    features, labels = tagged(pieces, ["V", "V", "none"], ("V",), 3)
    assert features.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert labels.tolist() == [[0, -100, -100], [-100, -100, -100]]
    assert tagged([], ["V"], ("V",), 3)[0].shape == (0, 3)
    assert padded(np.arange(1, 9), 3).tolist() == [[1, 2, 3]]


@laws
@given(st.text(max_size=80), st.integers(258, 300), st.booleans())
def test_words_are_numbered_by_how_often_they_occur(text: str, size: int, lower: bool) -> None:
    words = WordVocabulary.made_from((text.encode(),), size, lower)
    numbers = words.encode(text.encode())
    assert words.size <= size
    assert numbers.size == 0 or 2 <= numbers.min() <= numbers.max() < words.size
    times = np.bincount(numbers, minlength=words.size)[2:]
    assert (np.diff(times) <= 0).all()
    assert words.encode(b"\x00unseen").min(initial=1) >= 1


@laws
@given(st.binary(max_size=60))
def test_pieces_are_a_function_of_the_text(text: bytes) -> None:
    pieces = public_vocabulary("bpe", None, (PUBLIC.encode(),), 280, False)
    tokens = pieces.encode(text)
    assert tokens.tolist() == pieces.encode(text).tolist()
    assert tokens.size == 0 or 1 <= tokens.min() <= tokens.max() < pieces.size
    assert pieces.size <= 280


def test_a_tokenizers_file_is_used_as_it_is(place: Path) -> None:
    made = BpeVocabulary.made_from((PUBLIC.encode(),), 300)
    again = BpeVocabulary.made_from((PUBLIC.encode(),), 300)
    assert (made.digest, made.size) == (again.digest, again.size)
    assert len(made.encode(PUBLIC.encode())) < len(PUBLIC)
    (place / "tokenizer.json").write_text(made.description)
    given = public_vocabulary("bpe", place / "tokenizer.json", (), 258, False)
    assert given.digest == made.digest
    assert given.encode(b"the cat").tolist() == made.encode(b"the cat").tolist()
    (place / "tokenizer.json").write_text(json.dumps({"model": "none"}))
    with pytest.raises(
        ValueError, match="vocabulary must be a tokenizer of the library tokenizers"
    ) as refused:
        public_vocabulary("bpe", place / "tokenizer.json", (), 258, False)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="vocabulary_path must be readable"):
        public_vocabulary("words", place / "nowhere.txt", (), 258, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_column": "*.txt", "label_column": "y"}, "must be left out with text_column"),
        ({"text_column": "", "tag_column": "y"}, "text_column must be named with tag_column"),
        ({"text_column": "t", "schema": "c.toml"}, "schema must be left out with text_column"),
        ({"text_column": "t", "label_column": "y", "tag_column": "z"}, "must not both be named"),
        ({"vocabulary": "letters"}, "vocabulary must be one of bytes, words, bpe"),
        ({"length": 0}, r"T \(length of a sequence\)"),
        ({"text_column": "t", "user_column": ""}, "user_column must be named with partition 'natural'"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(path="x", **{"partition": "natural", "user_column": "user", "text_column": "t", **fields})
    with pytest.raises(ValueError, match=r"path must name a folder with \.txt files"):
        Table(path="nowhere", text_column="*.txt").load()
