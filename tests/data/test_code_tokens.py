"""Code tokens: whose text is whose, what is public of them, and that a user's text moves nobody else's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data import CodeTokens, DatasetOptions, FederatedDataset, InMemoryDataset, code_tokens, next_tokens
from fedmf.data.code_tokens import PINNED, StandardLibrary, read_modules, standard_library
from fedmf.data.module_list import MODULES
from fedmf.data.tokens import ByteVocabulary

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)


def library(texts: dict[str, bytes]) -> StandardLibrary:
    return StandardLibrary("0.0.0", texts)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A library of forty made-up modules of very different lengths."""
    rng = np.random.default_rng(0)
    texts = {f"m{i:02d}": rng.bytes(int(rng.integers(2, 400))) for i in range(40)}
    monkeypatch.setattr(code_tokens, "standard_library", lambda: library(texts))
    return texts


def options(**fields: object) -> CodeTokens:
    return CodeTokens(**{"users": 20, "length": 16, "seed": 3, **fields})  # type: ignore[arg-type]


def tokens_of(dataset: FederatedDataset, user: int) -> bytes:
    """The text that a user's sequences hold, but for its first byte."""
    _, labels = dataset.examples(np.array([user]))
    return bytes((labels[labels >= 0] - 1).tolist())


def test_every_module_is_whole_with_its_user(small: dict[str, bytes]) -> None:
    data = options()
    dataset = data.load()
    assert len(dataset.user_ids) == len(set(dataset.user_ids)) == 20
    for user, name in enumerate(dataset.user_ids):
        text = small[name]
        assert tokens_of(dataset, user) == text[1:]
        assert dataset.sizes(np.array([user])).tolist() == [-(-(len(text) - 1) // 16)]
        features, labels = dataset.examples(np.array([user]))
        real = labels != -100
        assert torch.equal(features[:, 1:][real[:, 1:]], labels[:, :-1][real[:, 1:]])
        assert (features[~real] == 0).all()
    assert dataset.structure.features.bound == dataset.vocabulary == 257


def test_public_held_out_and_users_are_three_parts(small: dict[str, bytes]) -> None:
    few, many = options(users=5).load(), options(users=24).load()
    assert list(few.user_ids) == list(many.user_ids)[:5]
    assert torch.equal(few.test_features, many.test_features)
    public = set(options().public_modules())
    pretrained = options(part="public", users=8).load()
    assert set(pretrained.user_ids) == public
    assert public.isdisjoint(many.user_ids)
    assert torch.equal(pretrained.test_features, many.test_features)
    held_out = set(small) - public - set(many.user_ids)
    assert len(held_out) == 8
    whole = options(most_test_sequences=10**6).load()
    assert len(whole.test_features) == sum(-(-(len(small[name]) - 1) // 16) for name in held_out)
    assert (few.test_owner, len(options(most_test_sequences=3).load().test_features)) == ("held-out users", 3)
    with pytest.raises(ValueError, match=r"U \(users\) must be at most 24, .* part 'users'; got 25"):
        options(users=25).load()


@pytest.mark.parametrize("vocabulary", ["bytes", "bpe"])
def test_a_users_text_moves_nobody_else(
    vocabulary: str, small: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = options(most_sequences=5, vocabulary=vocabulary, vocabulary_size=270)
    clean, tokens = data.load(), data.tokens()
    for victim in (0, 7, 19):
        for text in (b"", b"x", bytes(1000), b"\xff\xfe" * 300):
            changed = {**small, clean.user_ids[victim]: text}
            monkeypatch.setattr(code_tokens, "standard_library", lambda changed=changed: library(changed))
            hostile = data.load()
            assert data.tokens().digest == tokens.digest
            assert list(hostile.user_ids) == list(clean.user_ids)
            assert torch.equal(hostile.test_features, clean.test_features)
            assert hostile.structure == clean.structure
            for user in set(range(20)) - {victim}:
                for mine, before in zip(
                    hostile.examples(np.array([user])), clean.examples(np.array([user])), strict=True
                ):
                    assert torch.equal(mine, before)
            if vocabulary == "bytes" and len(text) <= 80:
                assert tokens_of(hostile, victim) == text[1:]


@laws
@given(st.lists(st.integers(1, 256), max_size=70), st.integers(1, 20), st.integers(1, 9))
def test_sequences_hold_each_pair_of_neighbours_once(tokens: list[int], length: int, most: int) -> None:
    features, labels = next_tokens(np.array(tokens, dtype=np.int64), length)
    real = labels != -100
    assert list(zip(features[real].tolist(), labels[real].tolist(), strict=True)) == list(
        itertools.pairwise(tokens)
    )
    some, _ = next_tokens(np.array(tokens, dtype=np.int64), length, most)
    assert len(some) == min(most, len(features))
    assert {tuple(row) for row in some.tolist()} <= {tuple(row) for row in features.tolist()}


@laws
@given(st.binary(max_size=50))
def test_bytes_are_tokens_and_back(text: bytes) -> None:
    tokens = ByteVocabulary().encode(text)
    assert bytes((tokens - 1).tolist()) == text
    assert tokens.size == 0 or 1 <= tokens.min() <= tokens.max() < ByteVocabulary().size


def test_the_installed_library_is_the_pinned_one_or_says_so(tmp_path: Path) -> None:
    here = standard_library()
    inputs = {entry.name: entry for entry in CodeTokens().public_inputs()}
    assert here.digest in inputs["texts"].value
    assert ("the pinned digest" in inputs["texts"].value) == (PINNED.get(here.version) == here.digest)
    assert "PSF" in inputs["texts"].source
    assert len(MODULES) == len(set(MODULES)) == 560
    (tmp_path / "json").mkdir()
    for path in ("ast.py", "json/__init__.py", "sitecustomize.py", "test_ast.py"):
        (tmp_path / path).write_text("x = 1\n")
    some = read_modules(tmp_path, here.version)
    assert (list(some.texts), some.pinned) == (["ast", "json"], False)
    assert "not pinned for this installation" in str(some)
    with pytest.raises(ValueError, match="sources of Python's standard library must be in"):
        read_modules(tmp_path / "nowhere", "3.11.7")


def test_the_real_library_makes_a_task_of_natural_sizes() -> None:
    data = CodeTokens(users=40, most_sequences=200)
    dataset = data.load()
    assert isinstance(data, DatasetOptions)
    assert isinstance(dataset, InMemoryDataset)
    sizes = dataset.sizes(np.arange(40))
    assert sizes.max() == 200
    assert sizes.min() < 40
    assert torch.equal(dataclasses.replace(data).load().features, dataset.features)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, r"T \(length of a sequence\) must be a whole number"),
        ({"vocabulary": "letters"}, "vocabulary must be one of bytes, bpe; got 'letters'"),
        ({"vocabulary_size": 257}, "vocabulary_size must be a whole number in 258"),
        ({"public_fraction": 0.8}, r"public_fraction must lie in \(0, 1 − test_fraction\); got 0.8"),
        ({"part": "everybody"}, "part must be one of users, public"),
        ({"most_sequences": 0}, "most_sequences must be a whole number"),
    ],
)
def test_what_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**wrong)


def test_pieces_are_made_from_the_public_part_alone(small: dict[str, bytes]) -> None:
    data = options(vocabulary="bpe", vocabulary_size=264)
    before = data.tokens().digest
    public = data.public_modules()
    for name in set(small) - set(public):
        small[name] = b"zz" * 500
    assert data.tokens().digest == before
    small[public[0]] = b"zz" * 500
    assert data.tokens().digest != before
    assert data.load().vocabulary <= 264
