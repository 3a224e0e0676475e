"""Data sets by name: digits, files of MNIST's format, and LEAF's synthetic users."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedmf.data import Dataset, Digits, Idx, Synthetic

laws = settings(derandomize=True, max_examples=30, deadline=None, database=None)

DATASETS: dict[str, Callable[[int], Dataset]] = {
    "digits": lambda seed: Digits(30, seed=seed).load(),
    "digits by label": (
        lambda seed: Digits(30, partition="dirichlet", dirichlet_alpha=0.1, seed=seed).load()
    ),
    "synthetic": lambda seed: Synthetic(30, examples_per_user=7, seed=seed).load(),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
def test_what_every_data_set_promises(make: Callable[[int], Dataset]) -> None:
    data = make(4)
    again = make(4)
    other = make(5)
    users = np.array([5, 3, 3, 29, 0, 7])
    features, labels = data.examples(users)
    first = 0
    for user, size in zip(users, data.sizes(users), strict=True):
        x, y = data.examples(np.array([user]))
        assert torch.equal(x, features[first : first + size])
        assert torch.equal(y, labels[first : first + size])
        first += size
    assert first == len(features) == len(labels)
    assert torch.equal(again.examples(users)[0], features)
    assert torch.equal(data.to("cpu").examples(users)[0], features)
    assert not torch.equal(other.test_features, data.test_features)
    for x, y in ((features, labels), (data.test_features, data.test_labels)):
        assert (x.dtype, y.dtype, len(x)) == (torch.float32, torch.int64, len(y))
        assert torch.isfinite(x).all()
        assert 0 <= int(y.min()) <= int(y.max()) < data.classes
    assert data.indices(list(data.user_ids)[::-1]).tolist() == list(range(30))[::-1]
    with pytest.raises(KeyError, match="nobody"):
        data.index_of("nobody")


def test_digits_are_what_scikit_learn_loads_split_without_loss() -> None:
    images, targets = load_digits(return_X_y=True)
    data = Digits(users=1797 - 359, seed=3).load()
    order = np.random.default_rng([3, 0xD161]).permutation(1797)
    assert np.array_equal(
        data.test_features.numpy(), (images / 16.0).astype(np.float32)[order[:359]]
    )
    assert np.array_equal(data.features.numpy(), (images / 16.0).astype(np.float32)[order[359:]])
    assert np.array_equal(data.labels.numpy(), targets[order[359:]])
    assert set(data.sizes(np.arange(1438)).tolist()) == {1}
    other = Digits(20, partition="dirichlet", seed=3, input_shape=(1, 8, 8)).load()
    assert torch.equal(other.test_features.flatten(1), data.test_features)


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, ">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )


def test_files_of_mnists_format_packed_or_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {
        "train": (rng.integers(256, size=(60, 28, 28)), rng.integers(10, size=60)),
        "t10k": (rng.integers(256, size=(9, 28, 28)), rng.integers(10, size=9)),
    }
    for name, (images, labels) in parts.items():
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
    options = Idx(users=6, path=str(tmp_path), input_shape=(1, 28, 28))
    data = options.load()
    assert sorted(data.owned.order.tolist()) == list(range(60))
    assert torch.equal(
        data.features[:, 0], torch.from_numpy((parts["train"][0] / 255).astype(np.float32))
    )
    assert data.test_labels.tolist() == parts["t10k"][1].tolist()
    file = tmp_path / "train-labels-idx1-ubyte"
    hostile = {
        "must be an IDX file": b"no IDX",
        "must be an IDX file of": idx(parts["train"][1])[:-1],
        "as many images as labels": idx(parts["train"][1][:-1]),
        "labels 0 to 9": idx(np.full(60, 10)),
    }
    for message, content in hostile.items():
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            options.load()


@laws
@given(st.lists(st.integers(0, 10**6 - 1), min_size=1, max_size=40), st.integers(0, 2**63 - 1))
def test_a_synthetic_user_is_a_function_of_seed_and_number(users: list[int], seed: int) -> None:
    """Alone or in a crowd, among a million or among just enough."""
    law = Synthetic(10**6, examples_per_user=5, features=9, classes=4, seed=seed)
    crowd = law.load()
    few = replace(law, users=max(users) + 1).load()
    features, labels = crowd.examples(np.array(users))
    for i, user in enumerate(users):
        x, y = few.examples(np.array([user]))
        assert torch.equal(x, features[5 * i : 5 * i + 5])
        assert torch.equal(y, labels[5 * i : 5 * i + 5])


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    r"N \(users\) must be greater than or equal to 1; got 0": (Digits, {"users": 0}),
    r"users must lie in 1\.\.1438, the number of training examples; got 1439": (
        Digits,
        {"users": 1439},
    ),
    "partition must be 'iid', 'dirichlet' or 'each-example'; got 'by-user'": (
        Digits,
        {"partition": "by-user"},
    ),
    "must multiply to the 64 entries": (Digits, {"input_shape": (8, 9)}),
    "test_fraction must be less than 1; got 1.0": (Digits, {"test_fraction": 1.0}),
    "test_fraction must hold out between 1 and 1796 of 1797": (Digits, {"test_fraction": 1e-4}),
    r"α \(dirichlet_alpha\) must be greater than 0": (Digits, {"dirichlet_alpha": 0.0}),
    "classes must be greater than or equal to 2; got 1": (Synthetic, {"classes": 1}),
    "partition must be 'iid'; got 'dirichlet'": (Synthetic, {"partition": "dirichlet"}),
}


def test_impossible_options_are_refused() -> None:
    for message, (make, keys) in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            make(**keys).load()
