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

from fedmf.data import Table
from fedmf.data.tokens import bpe_vocabulary, padded, public_vocabulary, trained_bpe, word_vocabulary

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)
PUBLIC = "the cat sat on the mat . the dog sat too\n"
NAMES = [f"u{u}" for u in range(8)]
ROWS = pd.DataFrame(
    [
        {"user": name, "text": f"the {name} cat {i} sat on a mat", "label": "yn"[(u + i) % 2]}
        for u, name in enumerate(NAMES)
        for i in range(3)
    ]
)
PIECES = {"vocabulary": "bpe", "vocabulary_path": "public.txt", "vocabulary_size": 270}
CASES: dict[str, dict[str, Any]] = {
    "next tokens": {"path": "rows.csv", "most_sequences": 5},
    "words": {"path": "rows.jsonl", "vocabulary": "words", "vocabulary_path": "public.txt"},
    "pieces": {"path": "rows.parquet", **PIECES},
    "labels": {"path": "rows.csv", "label_column": "label", "class_names": ("y", "n")},
    "made-up users": {"path": "rows.csv", "partition": "iid", "user_column": ""},
}


def write(place: Path, rows: pd.DataFrame) -> None:
    rows.to_csv(place / "rows.csv", index=False)
    rows.to_parquet(place / "rows.parquet", index=False)
    (place / "rows.jsonl").write_text(rows.to_json(orient="records", lines=True))


def options(place: Path, **fields: Any) -> Table:
    (place / "public.txt").write_text(PUBLIC)
    (place / "users.txt").write_text("\n".join(NAMES))
    declared = {"users": 6, "test_fraction": 0.25, "length": 8, "partition": "by-user", "user_column": "user"}
    fields = {**declared, "text_column": "text", **fields}
    fields["user_list"] = str(place / "users.txt") if fields["user_column"] else ""
    for name in ("path", "vocabulary_path"):
        fields |= {name: str(place / fields[name])} if name in fields else {}
    return Table(**fields)


HOSTILE = [
    "another text altogether",
    "",
    "\ufffd no UTF-8",
    "x" * 5000,
    "\u202e\U0001f600" * 40,
    'open "quotes, and',
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_form_is_tokens_and_a_users_text_moves_nobody_else(
    case: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, ROWS)
    data = options(tmp_path, **case)
    assert data.undeclared() == ()
    clean, digest = data.load(), data.tokens().digest
    features, labels = clean.examples(np.arange(6))
    assert (features.dtype, labels.dtype, features.shape[1]) == (torch.int64, torch.int64, 8)
    assert 0 <= int(features.min()) <= int(features.max()) < clean.vocabulary
    assert clean.structure.features.bound == clean.vocabulary
    assert int(labels.max()) < (clean.classes or clean.vocabulary)
    listed = {entry.name: entry for entry in data.public_inputs()}
    assert digest in listed["vocabulary"].value
    assert not any("not for private runs" in entry.source for entry in listed.values())
    by_user = data.partition == "by-user"
    victim = clean.user_ids[2] if by_user else "u3"
    row = ROWS.index[ROWS["user"] == victim][1]
    for text in HOSTILE:
        write(tmp_path, ROWS.assign(text=ROWS["text"].where(ROWS.index != row, text)))
        hostile = data.load()
        assert (data.tokens().digest, hostile.structure) == (digest, clean.structure)
        assert list(hostile.user_ids) == list(clean.user_ids)
        moved = [
            user
            for user in range(6)
            for mine, theirs in [(clean.examples(np.array([user])), hostile.examples(np.array([user])))]
            if not all(map(torch.equal, mine, theirs))
        ]
        tests = not torch.equal(hostile.test_features, clean.test_features)
        assert moved == [2] if by_user and not tests else len(moved) + tests <= 1


def test_vocabularies_of_users_rows_are_for_runs_without_privacy(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    for name in ("words", "bpe"):
        data = options(tmp_path, path="rows.csv", vocabulary=name)
        assert data.undeclared() == ("vocabulary_path",)
        assert "not for private runs" in {one.name: one.source for one in data.public_inputs()}["vocabulary"]
        assert data.load().vocabulary > 2
    without = Table(
        path="x", text_column="text", label_column="label", partition="by-user", user_column="user"
    )
    assert without.undeclared() == ("class_names", "user_list")


def test_a_text_keeps_its_first_tokens_and_its_label(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    data = options(tmp_path, **CASES["labels"])
    dataset = data.load()
    mine = ROWS[ROWS["user"] == dataset.user_ids[0]]
    features, labels = dataset.examples(np.array([0]))
    assert bytes((features[0] - 1).tolist()) == mine["text"].iloc[0].encode()[:8]
    assert [("y", "n")[label] for label in labels] == mine["label"].tolist()
    write(tmp_path, ROWS.assign(label=ROWS["label"].where(ROWS.index != mine.index[1], "other")))
    assert len(data.load().examples(np.array([0]))[0]) == 2
    assert padded(np.arange(1, 9), 3).tolist() == [[1, 2, 3]]


@laws
@given(st.text(max_size=80), st.integers(258, 300))
def test_words_are_numbered_by_how_often_they_occur(text: str, size: int) -> None:
    words = word_vocabulary((text.encode(),), size)
    numbers = words.encode(text.encode())
    assert words.size <= size
    assert numbers.size == 0 or 2 <= numbers.min() <= numbers.max() < words.size
    assert (np.diff(np.bincount(numbers, minlength=words.size)[2:]) <= 0).all()
    assert words.encode(b"\x00unseen").min(initial=1) >= 1


@laws
@given(st.binary(max_size=60))
def test_pieces_are_a_function_of_the_text(text: bytes) -> None:
    pieces = public_vocabulary("bpe", None, (PUBLIC.encode(),), 280)
    tokens = pieces.encode(text)
    assert tokens.tolist() == pieces.encode(text).tolist()
    assert tokens.size == 0 or 1 <= tokens.min() <= tokens.max() < pieces.size <= 280


def test_a_tokenizers_file_is_used_as_it_is(tmp_path: Path) -> None:
    description = trained_bpe((PUBLIC.encode(),), 300)
    made = bpe_vocabulary(description)
    assert len(made.encode(PUBLIC.encode())) < len(PUBLIC)
    (tmp_path / "tokenizer.json").write_text(description)
    given_one = public_vocabulary("bpe", tmp_path / "tokenizer.json", (), 258)
    assert given_one.digest == made.digest
    assert given_one.encode(b"the cat").tolist() == made.encode(b"the cat").tolist()
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "none"}))
    with pytest.raises(
        ValueError, match="vocabulary must be a tokenizer of the library tokenizers"
    ) as refused:
        public_vocabulary("bpe", tmp_path / "tokenizer.json", (), 258)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="vocabulary_path must be readable"):
        public_vocabulary("words", tmp_path / "nowhere.txt", (), 258)
