"""Partitions of examples over users, and the digits data set."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedmf.data.digit_images import Digits
from fedmf.data.memory import InMemoryDataset
from fedmf.data.partitions import partition_by_label, partition_evenly
from fedmf.models import mlp
from fedmf.training.kinds import classification

laws = settings(derandomize=True, max_examples=40, deadline=None, database=None)
EXAMPLES = 1797


def check_partition(owned: tuple[np.ndarray, ...], examples: int, users: int) -> None:
    """Every example belongs to exactly one user, and no user owns two more than another."""
    assert len(owned) == users
    assert sorted(np.concatenate(owned).tolist()) == list(range(examples))
    sizes = [part.size for part in owned]
    assert max(sizes) - min(sizes) <= 1
    assert all((np.diff(part) > 0).all() for part in owned)


@laws
@given(st.integers(1, 80), st.integers(1, 12), st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_partitions_give_every_example_to_one_user(users: int, extra: int, alpha: float, seed: int) -> None:
    examples = users + extra * 7
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, size=examples)
    check_partition(partition_evenly(examples, users, rng), examples, users)
    check_partition(partition_by_label(labels, users, alpha, rng), examples, users)


def skew(owned: tuple[np.ndarray, ...], labels: np.ndarray) -> float:
    """Mean total-variation distance of a user's label shares from everybody's."""
    everybody = np.bincount(labels) / labels.size
    shares = [np.bincount(labels[part], minlength=everybody.size) / part.size for part in owned]
    return float(np.mean([np.abs(share - everybody).sum() / 2 for share in shares]))


def test_skew_grows_as_alpha_falls() -> None:
    labels = load_digits().target
    by_alpha = [
        skew(partition_by_label(labels, 60, alpha, np.random.default_rng(0)), labels)
        for alpha in (1e-3, 0.1, 0.5, 2.0, 100.0)
    ]
    assert all(more > less + 0.02 for more, less in pairwise(by_alpha))
    assert by_alpha[0] > 0.7
    # Labels' pools run dry at different times, so the last users are a little skewed whatever α is.
    even = skew(partition_evenly(labels.size, 60, np.random.default_rng(0)), labels)
    assert by_alpha[-1] == pytest.approx(even, abs=0.06)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        partition_by_label(np.zeros(4, dtype=np.int64), 2, alpha, np.random.default_rng(0))


def rows_of(features: torch.Tensor, labels: torch.Tensor) -> list[tuple[float, ...]]:
    return sorted((*row, float(label)) for row, label in zip(features.tolist(), labels, strict=True))


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_digits_are_split_without_loss_or_overlap(partition: str) -> None:
    dataset = Digits(360, partition=partition, seed=3).load()  # type: ignore[arg-type]
    check_partition(dataset.owned, dataset.labels.numel(), 360)
    images, targets = load_digits(return_X_y=True)
    together = (
        torch.cat([dataset.features, dataset.test_features]),
        torch.cat([dataset.labels, dataset.test_labels]),
    )
    assert rows_of(*together) == rows_of(torch.from_numpy(images / 16), torch.from_numpy(targets))
    assert dataset.test_labels.numel() == round(0.2 * EXAMPLES)
    assert dataset.features.dtype == torch.float32
    assert dataset.labels.dtype == torch.int64
    assert (dataset.features.min(), dataset.features.max()) == (0.0, 1.0)
    assert (dataset.users, dataset.classes) == (360, 10)


def test_user_names_are_stable_and_sort_like_their_numbers() -> None:
    names = Digits(101).load().user_ids
    assert list(names[:2]) == ["user-000", "user-001"]
    assert list(names) == sorted(set(names))
    assert Digits(10).load().user_ids[-1] == "user-9"


def test_digits_are_a_pure_function_of_the_seed() -> None:
    def key(seed: int) -> str:
        dataset = Digits(20, seed=seed, partition="dirichlet").load()
        return str([part.tolist() for part in dataset.owned]) + str(dataset.test_labels.tolist())

    first = key(0)
    np.random.default_rng().normal()
    assert key(0) == first
    assert key(1) != first


def test_the_test_part_does_not_depend_on_the_partition() -> None:
    parts = [Digits(20, partition=name, seed=5).load().test_features for name in ("iid", "dirichlet")]
    assert torch.equal(*parts)


@pytest.mark.parametrize(
    ("users", "keys", "message"),
    [
        (0, {}, r"N \(users\) must be an integer in 1\.\.2147483647; got 0"),
        (1439, {}, "users must lie in 1..1438, the number of training examples; got 1439"),
        (5, {"partition": "sorted"}, "partition must be one of iid, dirichlet, .*; got 'sorted'"),
        (5, {"partition": "natural"}, "partition must be one of iid, dirichlet, .*; got 'natural'"),
        (5, {"shards_per_user": 0}, r"s \(shards_per_user\) must be an integer in 1\.\."),
        (5, {"seed": -1}, r"seed must be an integer in 0\.\..*; got -1"),
        (5, {"input_shape": (8, 0)}, r"input_shape must be an integer in 1..2147483647; got \(8, 0\)"),
        (5, {"input_shape": (8, 9)}, "must multiply to the 64 entries"),
        (5, {"test_fraction": 0.0}, r"test_fraction must lie in \(0, 1\); got 0.0"),
        (5, {"test_fraction": 1.0}, r"test_fraction must lie in \(0, 1\); got 1.0"),
        (5, {"test_fraction": 1e-4}, "test_fraction must hold out at least one of 1797 examples; got 0.0001"),
        (5, {"partition": "dirichlet", "dirichlet_alpha": 0.0}, "must lie in"),
    ],
)
def test_impossible_digits_are_refused(users: int, keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Digits(users, **keys).load()  # type: ignore[arg-type]


def test_every_user_can_own_a_single_example() -> None:
    dataset = Digits(1438).load()
    assert {part.size for part in dataset.owned} == {1}


def tiny(**changes: object) -> InMemoryDataset:
    dataset = InMemoryDataset(
        features=torch.zeros(3, 2),
        labels=torch.zeros(3, dtype=torch.int64),
        owned=(np.array([0, 2]), np.array([1])),
        user_ids=("a", "b"),
        test_features=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]]),
        test_labels=torch.tensor([0, 1, 0, 1]),
        classes=2,
    )
    return replace(dataset, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_ids": ("a", "a")}, r"user ids must be unique, .* 2 ids \(1 different\) for 2 users"),
        ({"user_ids": ("a",)}, r"got 1 ids \(1 different\) for 2 users"),
    ],
)
def test_impossible_datasets_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_evaluation_is_the_mean_over_the_test_part() -> None:
    """θ = identity weights, zero bias: logits equal the features; hand-computed loss and accuracy."""
    task = classification(tiny(), mlp(2, (), 2, 0))
    result = task.evaluate(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]))
    losses = [np.log(1 + np.exp(-1)), np.log(1 + np.exp(-1)), np.log(2), np.log(1 + np.exp(-1))]
    assert result["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert result["accuracy"] == 1.0
    swapped = task.evaluate(torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0]))
    assert swapped["accuracy"] == 0.25


def test_the_file_that_is_read_is_what_scikit_learn_loads() -> None:
    images, targets = load_digits(return_X_y=True)
    dataset = Digits(users=1797 - 359, seed=3).load()
    order = np.random.default_rng([3, 0xD161]).permutation(1797)
    assert np.array_equal(dataset.test_features.numpy(), (images / 16.0).astype(np.float32)[order[:359]])
    assert np.array_equal(dataset.test_labels.numpy(), targets[order[:359]])
    assert np.array_equal(dataset.features.numpy(), (images / 16.0).astype(np.float32)[order[359:]])
