"""What every federated dataset promises, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data import Digits, Synthetic
from fedmf.data.dataset import FederatedDataset, NumberedUsers

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)

DATASETS: dict[str, Callable[[int], FederatedDataset]] = {
    "digits": lambda seed: Digits(30, seed=seed).load(),
    "digits-dirichlet": lambda seed: Digits(30, partition="dirichlet", dirichlet_alpha=0.1, seed=seed).load(),
    "digits-power-law": lambda seed: Digits(30, "power-law", size_exponent=1.2, seed=seed).load(),
    "synthetic": lambda seed: Synthetic(30, examples_per_user=7, seed=seed).load(),
    "synthetic-power-law": lambda seed: Synthetic(
        30, "power-law", 1.3, examples_per_user=90, features=5, classes=3, clusters=4, seed=seed
    ).load(),
}
every_dataset = pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)


@every_dataset
def test_examples_of_several_users_are_those_of_each_in_the_order_asked(
    make: Callable[[int], FederatedDataset],
) -> None:
    dataset = make(0)
    users = np.array([5, 3, 3, 29, 0, 7])
    features, labels = dataset.examples(users)
    single = [dataset.examples(np.array([u])) for u in users]
    assert [part.shape[0] for part, _ in single] == dataset.sizes(users).tolist()
    assert torch.equal(features, torch.cat([part for part, _ in single]))
    assert torch.equal(labels, torch.cat([part for _, part in single]))
    assert all(torch.equal(*pair) for pair in zip(single[1], single[2], strict=True))


@every_dataset
def test_types_shapes_and_ranges(make: Callable[[int], FederatedDataset]) -> None:
    dataset = make(0)
    everybody = np.arange(dataset.users)
    features, labels = dataset.examples(everybody)
    assert (dataset.sizes(everybody) >= 1).all()
    assert dataset.sizes(everybody).dtype == np.int64
    for x, y in ((features, labels), (dataset.test_features, dataset.test_labels)):
        assert (x.dtype, y.dtype, len(x)) == (torch.float32, torch.int64, len(y))
        assert torch.isfinite(x).all()
        assert 0 <= int(y.min()) <= int(y.max()) < dataset.classes
        assert x.shape[1:] == dataset.test_features.shape[1:]
    assert dataset.test_labels.numel() > 0


@every_dataset
def test_a_seed_names_one_dataset(make: Callable[[int], FederatedDataset]) -> None:
    first, again, other = make(4), make(4), make(5)
    users = np.arange(30)
    assert torch.equal(first.examples(users)[0], again.examples(users)[0])
    assert torch.equal(first.test_features, again.test_features)
    assert not torch.equal(first.test_features, other.test_features)


@every_dataset
def test_users_are_found_by_their_ids(make: Callable[[int], FederatedDataset]) -> None:
    dataset = make(0)
    assert len(set(dataset.user_ids)) == dataset.users == 30
    assert dataset.indices(list(dataset.user_ids)[::-1]).tolist() == list(range(30))[::-1]
    with pytest.raises(KeyError, match="nobody"):
        dataset.index_of("nobody")


@every_dataset
def test_moving_changes_nothing(make: Callable[[int], FederatedDataset]) -> None:
    dataset = make(0)
    users = np.array([2, 9])
    moved = dataset.to("cpu")
    assert torch.equal(moved.examples(users)[0], dataset.examples(users)[0])
    assert moved.user_ids[9] == dataset.user_ids[9]


@laws
@given(st.integers(1, 5000), st.data())
def test_numbered_users_are_found_where_they_are(users: int, data: st.DataObject) -> None:
    ids = NumberedUsers(users)
    u = data.draw(st.integers(0, users - 1))
    assert ids.index_of(ids[u]) == u
    assert ids[u] in ids
    start, stop, step = (data.draw(st.integers(*bounds)) for bounds in ((0, users), (0, users), (1, 9)))
    part = ids[start:stop:step]
    assert list(part) == [f"user-{i:0{len(str(users - 1))}d}" for i in range(start, stop, step)]
    assert [part.index_of(name) for name in part] == list(range(len(part)))


@pytest.mark.parametrize(
    "stranger",
    ["user-10", "user-1", "user-001", "user--1", "user-1_", "user-٠٣", "01", "user-user-01", "USER-01", ""],
)
def test_strangers_have_no_number(stranger: str) -> None:
    ids = NumberedUsers(10) if stranger == "user-10" else NumberedUsers(11)
    with pytest.raises(KeyError):
        ids.index_of(stranger)
    assert stranger not in ids
    assert 3 not in ids


def test_nobody_cannot_be_numbered() -> None:
    with pytest.raises(ValueError, match="users must be at least 1; got 0"):
        NumberedUsers(0)
