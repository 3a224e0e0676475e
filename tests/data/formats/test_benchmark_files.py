"""CIFAR-10's binary version, LEAF's JSON, rows of tokens: what is read, and what a bad row does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.format_files import (
    USERS,
    leaf_user,
    write_cifar,
    write_leaf,
    write_roster,
    write_sentences,
)

from fedmf.data import Cifar10, FederatedDataset, Leaf, TokenRows

LEAF: dict[str, Any] = {"users": 6, "class_names": ("0..2",), "input_shape": (1, 2, 3)}
TOKENS: dict[str, Any] = {"users": 6, "vocabulary_size": 50, "length": 5}


def everything(data: FederatedDataset) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: data.examples(np.array([data.index_of(name)])) for name in data.user_ids}


def same_but_for(clean: FederatedDataset, other: FederatedDataset, victim: str) -> None:
    """Whoever is not the victim keeps every bit, and so does the test part."""
    assert list(clean.user_ids) == list(other.user_ids)
    assert torch.equal(clean.test_features, other.test_features)
    assert torch.equal(clean.test_labels, other.test_labels)
    mine, theirs = everything(clean), everything(other)
    for name in mine:
        if name != victim:
            assert torch.equal(mine[name][0], theirs[name][0])
            assert torch.equal(mine[name][1], theirs[name][1])


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_cifar_records_are_planes_of_colours(tmp_path: Path, partition: Any) -> None:
    data = Cifar10(path=write_cifar(tmp_path), users=6, partition=partition).load()
    content = np.fromfile(tmp_path / "data_batch_1.bin", dtype=np.uint8).reshape(-1, 3073)
    features, labels = data.examples(np.arange(6))
    assert (features.shape, labels.shape) == ((60, 3, 32, 32), (60,))
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    red = torch.tensor(content[4, 1:1025].reshape(32, 32) / 255.0).float()
    blue = torch.tensor(content[4, 2049:].reshape(32, 32) / 255.0).float()
    expected = torch.stack([(red - mean[0]) / deviation[0], (blue - mean[2]) / deviation[2]])
    distances = (features[:, [0, 2]] - expected).abs().flatten(1).amax(dim=1)
    assert distances.min() < 1e-5
    assert labels[distances.argmin()] == content[4, 0]
    assert data.test_features.shape == (12, 3, 32, 32)
    assert data.classes == 10
    assert [entry.name for entry in Cifar10(path="x").public_inputs()].count("test part") == 1


def test_a_record_without_a_label_is_nobodys(tmp_path: Path) -> None:
    value = Cifar10(path=write_cifar(tmp_path), users=6)
    clean = value.load()
    content = np.fromfile(tmp_path / "data_batch_2.bin", dtype=np.uint8)
    assert content[0] == 0
    content[0] = 10
    (tmp_path / "data_batch_2.bin").write_bytes(content.tobytes())
    other = value.load()
    sizes = clean.sizes(np.arange(6)) - other.sizes(np.arange(6))
    assert sorted(sizes.tolist()) == [0, 0, 0, 0, 0, 1]
    same_but_for(clean, other, clean.user_ids[int(sizes.argmax())])


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    value = Cifar10(path=write_cifar(tmp_path), users=6)
    with (tmp_path / "data_batch_3.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        ValueError, match=r"data_batch_3.bin must consist of records of 3,073 bytes; got 36,877"
    ):
        value.load()
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match="the Python version is not read"):
        value.load()
    with pytest.raises(ValueError, match=r"path .* must name the folder of test_batch.bin"):
        Cifar10()


def test_leaf_users_own_their_rows(tmp_path: Path) -> None:
    data = Leaf(path=write_leaf(tmp_path), roster=write_roster(tmp_path), **LEAF).load()
    assert tuple(data.user_ids) == USERS
    for i, name in enumerate(USERS):
        features, labels = everything(data)[name]
        assert torch.allclose(features, torch.tensor(leaf_user(i)["x"]).reshape(4, 1, 2, 3))
        assert labels.tolist() == [0, 1, 2, 0]
    assert data.test_owner == "held-out users"
    assert len(data.test_features) == 8  # u1 is a user of the run


def test_leaf_splits_by_sample_are_not_private_and_say_so(tmp_path: Path) -> None:
    value = Leaf(path=write_leaf(tmp_path), hold_out="examples", **LEAF)
    data = value.load()
    assert (len(data.test_features), data.test_owner) == (12, "training users")
    assert value.undeclared() == ("roster",)


def test_leaf_without_a_test_folder_holds_users_out(tmp_path: Path) -> None:
    data = Leaf(path=write_leaf(tmp_path, test=False), **{**LEAF, "users": 4}, test_fraction=0.3).load()
    assert (data.users, len(data.test_features)) == (4, 8)


HOSTILE: dict[str, Any] = {
    "another length": lambda own: own["x"].__setitem__(1, [0.5]),
    "no list": lambda own: own["x"].__setitem__(1, None),
    "text": lambda own: own["x"].__setitem__(1, ["a"] * 6),
    "not finite": lambda own: own["x"].__setitem__(1, [float("nan")] * 6),
    "too large": lambda own: own["x"].__setitem__(1, [10**60] * 6),
    "far too large": lambda own: own["x"].__setitem__(1, [10**400] * 6),
    "a truth value": lambda own: own["x"].__setitem__(1, [True] * 6),
    "nested": lambda own: own["x"].__setitem__(1, [[1.0] * 6]),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_bad_row_of_leaf_is_its_owners_alone(tmp_path: Path, hostile: str) -> None:
    value = Leaf(path=write_leaf(tmp_path), roster=write_roster(tmp_path), **LEAF)
    clean = value.load()
    own = leaf_user(2)
    HOSTILE[hostile](own)
    write_leaf(tmp_path, {"u0": own})
    other = value.load()
    same_but_for(clean, other, "u0")
    features, _ = everything(other)["u0"]
    assert torch.isnan(features).flatten(1).all(dim=1).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    "own", [None, [], {"x": []}, {"y": 3}, {"y": [1], "x": "no"}, {"y": ["7", None, 1.5]}]
)
def test_a_bad_user_of_leaf_keeps_the_others(tmp_path: Path, own: Any) -> None:
    value = Leaf(path=write_leaf(tmp_path), roster=write_roster(tmp_path), **LEAF)
    clean = value.load()
    write_leaf(tmp_path, {"u0": own})
    other = value.load()
    same_but_for(clean, other, "u0")
    features, _ = everything(other)["u0"]
    assert len(features) <= 1
    assert torch.isnan(features).all()


UNREADABLE = {
    "a number of 5,000 digits": '{"x": ['
    + "[1, 2, 3, 4, 5, 6]," * 3
    + '[1, 2, 3, 4, 5, 9]], "y": [0, 1, 2, '
    + "9" * 5000
    + "]}",
    "deep nesting": "[" * 100_000 + "]" * 100_000,
    "no JSON": '{"x": [nothing, "]}", "\\"{"], "y": [1, 2]}',
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_no_parser_takes_is_its_users_loss_alone(tmp_path: Path, what: str) -> None:
    value = Leaf(path=write_leaf(tmp_path), roster=write_roster(tmp_path), **LEAF)
    clean = value.load()
    write_leaf(tmp_path, {"u0": "HERE"})
    for file in (tmp_path / "train").iterdir():
        file.write_text(file.read_text().replace('"HERE"', UNREADABLE[what]))
    other = value.load()
    same_but_for(clean, other, "u0")
    assert len(everything(other)["u0"][0]) <= 1


def test_leaf_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must hold train/\*.json, as LEAF writes them"):
        Leaf(path=str(tmp_path), **LEAF).load()
    (tmp_path / "fed_emnist_train.h5").write_bytes(b"")
    with pytest.raises(ValueError, match="HDF5 is not read: take LEAF's JSON"):
        Leaf(path=str(tmp_path), **LEAF).load()
    write_leaf(tmp_path)
    unfinished = (
        '{"user_data": {"u0": {"x": [], "y": []',
        '{"a": ["user_data"}',
        '{"user_data": {}} {}',
        "{}{}",
    )
    for content in ("{", "[]", '{"user_data": 3}', "[" * 100_000, *unfinished):
        (tmp_path / "train" / "all_data_0.json").write_text(content)
        with pytest.raises(ValueError, match="path must hold") as caught:
            Leaf(path=str(tmp_path), **LEAF).load()
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="partition must be one of natural; got 'iid'"):
        Leaf(path="x", partition="iid")


def test_sentences_are_tokens_and_the_ones_that_follow(tmp_path: Path) -> None:
    write_sentences(tmp_path, 0, [7, 8, 9])
    data = TokenRows(path=str(tmp_path), roster=write_roster(tmp_path), **TOKENS).load()
    assert tuple(data.user_ids) == USERS
    assert data.vocabulary == 50
    features, labels = everything(data)["u3"]
    assert features[0].tolist() == [7, 8, 9, 0, 0]
    assert labels[0].tolist() == [8, 9, -100, -100, -100]
    assert (features.dtype, labels.dtype) == (torch.int64, torch.int64)
    assert len(data.test_features) == 20  # u1's are left out
    assert data.test_owner == "held-out users"


def test_long_sentences_are_cut_and_few_are_kept(tmp_path: Path) -> None:
    write_sentences(tmp_path, 1, list(range(1, 20)))
    value = TokenRows(path=str(tmp_path), most_sequences=2, most_test_sequences=3, **TOKENS)
    data, longer = value.load(), TokenRows(path=str(tmp_path), most_sequences=None, **TOKENS).load()
    assert data.sizes(np.arange(6)).tolist() == [2] * 6
    assert longer.sizes(np.arange(6)).tolist() == [5] * 6
    for name, (features, _) in everything(data).items():
        assert torch.equal(features, everything(longer)[name][0][:2])
    features, labels = everything(data)["u1"]
    assert features[0].tolist() == [1, 2, 3, 4, 5]
    assert labels[0].tolist() == [2, 3, 4, 5, 6]
    assert len(data.test_features) == 3


@pytest.mark.parametrize("value", [None, [], [50], [3, -1, 4], [3, None], [2**31 - 1, 3]])
def test_a_sentence_of_no_tokens_is_its_owners_alone(tmp_path: Path, value: Any) -> None:
    options = TokenRows(path=write_sentences(tmp_path), roster=write_roster(tmp_path), **TOKENS)
    clean = options.load()
    write_sentences(tmp_path, 21, value)  # the second file; u2's
    other = options.load()
    same_but_for(clean, other, "u2")
    features, labels = everything(other)["u2"]
    assert len(features) == 5
    assert (features[3] == 0).all()
    assert (labels[3] == -100).all()


def test_sentences_without_a_test_folder_hold_users_out(tmp_path: Path) -> None:
    fields = {**TOKENS, "users": 4}
    data = TokenRows(path=write_sentences(tmp_path, test=False), test_fraction=0.3, **fields).load()
    assert (data.users, len(data.test_features)) == (4, 10)
    assert TokenRows(path="x").undeclared() == ("roster",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens_column": "words"}, "must name one column of .*; got 'words'"),
        ({"tokens_column": "user", "user_column": "user"}, "tokens_column must be different columns"),
        (
            {"path": "nowhere"},
            r"path must name a \.parquet file that exists, or a folder with some; got nowhere",
        ),
        ({"partition": "iid"}, "partition must be one of natural; got 'iid'"),
        ({"length": 0}, r"T \(length of a sequence\) must be a whole number"),
        ({"vocabulary_size": 1}, "vocabulary_size must be a whole number in 2"),
    ],
)
def test_sentences_that_cannot_be_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    keys = {"path": write_sentences(tmp_path), **TOKENS, **fields}
    with pytest.raises(ValueError, match=message):
        TokenRows(**keys).load()
