"""Texts: what they become, whose they are, and that one user's text moves neither others nor a
vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fedmf.data import Table
from fedmf.data.tokens import public_vocabulary

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)
PUBLIC = "the cat sat on the mat . the dog sat too\n"
NAMES = [f"u{u}" for u in range(8)]
OWNERS = [name for name in NAMES for _ in range(3)]
ROWS = pd.DataFrame(
    {
        "user": OWNERS,
        "text": [f"the {name} cat {i % 3} sat on a mat" for i, name in enumerate(OWNERS)],
        "label": ["y", "n"] * 12,
    }
)
PIECES = {"vocabulary_path": "tokenizer.json"}
CASES: dict[str, dict[str, Any]] = {
    "next tokens": {"path": "rows.csv", "most_sequences": 5},
    "JSON lines": {"path": "rows.jsonl"},
    "pieces": {"path": "rows.parquet", **PIECES},
    "labels": {"path": "rows.csv", "label_column": "label", "class_names": ("y", "n")},
    "made-up users": {"path": "rows.csv", "partition": "iid", "user_column": ""},
}


def trained(place: Path) -> Path:
    """A tokenizer of byte pieces of the public text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=270, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([PUBLIC], trainer)
    tokenizer.save(str(place / "tokenizer.json"))
    return place / "tokenizer.json"


def write(place: Path, rows: pd.DataFrame) -> None:
    rows.to_csv(place / "rows.csv", index=False)
    rows.to_parquet(place / "rows.parquet", index=False)
    (place / "rows.jsonl").write_text(rows.to_json(orient="records", lines=True))


def options(place: Path, **fields: Any) -> Table:
    trained(place)
    (place / "users.txt").write_text("\n".join(NAMES))
    declared = {
        "users": 6,
        "test_fraction": 0.25,
        "length": 8,
        "partition": "by-user",
        "user_column": "user",
    }
    fields = {**declared, "text_column": "text", **fields}
    if fields["user_column"]:
        fields["user_list"] = str(place / "users.txt")
    for name in ("path", "vocabulary_path"):
        if name in fields:
            fields[name] = str(place / fields[name])
    return Table(**fields)


HOSTILE = [
    "another text altogether",
    "",
    "\ufffd no UTF-8",
    "x" * 5000,
    "\u202e\U0001f600" * 40,
    'open "quotes, and',
    "first line\nu1,second line,y\n",
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_form_is_tokens_and_a_users_text_moves_nobody_else(
    case: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, ROWS)
    data = options(tmp_path, **case)
    clean = data.load()
    features, labels = clean.examples(np.arange(6))
    assert (features.dtype, labels.dtype, features.shape[1]) == (torch.int64, torch.int64, 8)
    assert 0 <= int(features.min()) <= int(features.max()) < clean.vocabulary
    assert clean.structure.features.bound == clean.vocabulary
    assert int(labels.max()) < (clean.classes or clean.vocabulary)
    listed = {entry.name: entry.value for entry in data.public_inputs()}
    assert data.tokens.digest in listed["vocabulary"]
    by_user = data.partition == "by-user"
    victim = "u3"
    if by_user:
        victim = clean.user_ids[2]
    row = ROWS.index[ROWS["user"] == victim][1]
    for text in HOSTILE:
        write(tmp_path, ROWS.assign(text=ROWS["text"].where(ROWS.index != row, text)))
        hostile = data.load()
        assert hostile.structure == clean.structure
        assert list(hostile.user_ids) == list(clean.user_ids)
        moved: list[int] = []
        for user in range(6):
            x, y = clean.examples(np.array([user]))
            other_x, other_y = hostile.examples(np.array([user]))
            if not (torch.equal(x, other_x) and torch.equal(y, other_y)):
                moved.append(user)
        tests = not torch.equal(hostile.test_features, clean.test_features)
        if by_user and not tests:
            assert moved == [2]
        else:
            assert len(moved) + tests <= 1


def test_a_tokenizers_file_is_used_as_it_is(tmp_path: Path) -> None:
    pieces = public_vocabulary(str(trained(tmp_path)))
    assert len(pieces.encode(PUBLIC.encode())) < len(PUBLIC)

    @laws
    @given(st.binary(max_size=60))
    def every_text_is_tokens(text: bytes) -> None:
        tokens = pieces.encode(text)
        assert tokens.tolist() == pieces.encode(text).tolist()
        assert tokens.size == 0 or 1 <= tokens.min() <= tokens.max() < pieces.size <= 271

    every_text_is_tokens()
    (tmp_path / "tokenizer.json").write_text('{"model": "none"}')
    for file, message in (
        ("tokenizer.json", "vocabulary must be a tokenizer of the library tokenizers"),
        ("nowhere.json", "vocabulary_path must be readable"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            public_vocabulary(str(tmp_path / file))
        assert "\n" not in str(refused.value)
