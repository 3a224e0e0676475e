"""Data sets in Hugging Face's format on disk, spread by flwr-datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from fedmf.data import Hub

TRAIN, TEST = 120, 30


def images(count: int, seed: int, channels: int = 3) -> datasets.Dataset:
    rng = np.random.default_rng(seed)
    shape = (8, 6, channels) if channels > 1 else (8, 6)
    return datasets.Dataset.from_dict(
        {
            "image": [rng.integers(0, 256, size=shape, dtype=np.uint8) for _ in range(count)],
            "label": rng.integers(0, 4, size=count).tolist(),
            "writer": [f"w{i % 7}" for i in range(count)],
        },
        features=datasets.Features(
            {
                "image": datasets.Image(),
                "label": datasets.ClassLabel(names=["a", "b", "c", "d"]),
                "writer": datasets.Value("string"),
            }
        ),
    )


@pytest.fixture(autouse=True)
def quiet_and_offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Parquet files named after their splits, as the hub keeps them."""
    path = tmp_path_factory.mktemp("images")
    images(TRAIN, 0).to_parquet(path / "train-0.parquet")
    images(TEST, 1).to_parquet(path / "test-0.parquet")
    return str(path)


@pytest.mark.parametrize(
    "partition", ["natural", "iid", "dirichlet", "dirichlet-sizes", "power-law", "shards"]
)
def test_every_example_belongs_to_one_user_and_is_decoded_right(folder: str, partition: str) -> None:
    options = Hub(5, partition, path=folder, user_column="writer", seed=3, hold_out="examples")  # type: ignore[arg-type]
    data = options.load()
    raw = images(TRAIN, 0)
    pixels = torch.stack([torch.from_numpy(np.asarray(image).copy()) for image in raw[:]["image"]])
    expected = pixels.permute(0, 3, 1, 2).float() / 255
    assert sorted(data._owned.order.tolist()) == list(range(TRAIN))
    for u, name in enumerate(data.user_ids):
        mine = data._owned[u]
        features, labels = data.examples(np.array([u]))
        assert torch.equal(features, expected[mine])
        assert labels.tolist() == np.asarray(raw[:]["label"])[mine].tolist()
        assert data.sizes(np.array([u])) == [len(mine)]
        if partition == "natural":
            assert {raw[:]["writer"][i] for i in mine} == {name}
    together = data.examples(np.array([3, 1]))[0]
    assert torch.equal(together, torch.cat([data.examples(np.array([u]))[0] for u in (3, 1)]))
    assert data.test_features.shape == (TEST, 3, 8, 6)
    assert sorted(data.test_labels.tolist()) == sorted(images(TEST, 1)[:]["label"])
    assert (data.users, data.classes) == (7 if partition == "natural" else 5, 4)
    again = options.load()
    assert again._owned.order.tolist() == data._owned.order.tolist()


def test_rows_of_training_users_in_the_test_split_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    train, test = images(TRAIN, 0), images(TEST, 1)
    writers = ["w1" if i % 3 else "stranger" for i in range(TEST)]
    test = test.remove_columns("writer").add_column("writer", writers)  # type: ignore[call-arg]
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "saved")
    options = Hub(7, "natural", path=str(tmp_path / "saved"), user_column="writer", class_names=("0..3",))
    apart = options.load()
    assert (len(apart.test_labels), apart.test_owner) == (10, "held-out users")
    assert apart.test_labels.tolist() == test[:]["label"][::3]
    assert (apart.users, apart.sizes(np.arange(7)).sum()) == (7, TRAIN)
    mixed = replace(options, hold_out="examples").load()
    assert (len(mixed.test_labels), mixed.test_owner) == (TEST, "training users")
    unnamed = test.remove_columns("writer")
    datasets.DatasetDict({"train": train, "test": unnamed}).save_to_disk(tmp_path / "unnamed")
    with pytest.raises(ValueError, match=r"split 'test' of .* must have column 'writer'"):
        replace(options, path=str(tmp_path / "unnamed")).load()
    same = datasets.DatasetDict({"train": train, "test": images(TEST, 1)})
    same.save_to_disk(tmp_path / "same")
    with pytest.raises(ValueError, match="test part must have at least one row"):
        replace(options, path=str(tmp_path / "same")).load()


def saved(path: Path, columns: dict[str, list[Any]]) -> str:
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)}).save_to_disk(path)
    return str(path)


GOOD = {"x": [[float(i), 1.0] for i in range(8)], "y": list("abababab"), "who": ["u", "v"] * 4}


@pytest.mark.parametrize(
    ("changes", "columns", "message"),
    [
        ({}, ("z", "y", "who"), "feature_columns must name one column of .*; got 'z'.* among x, y, who"),
        ({}, ("who", "y", ""), "must hold images or numbers; got .* in 'who'"),
    ],
)
def test_bad_data_are_one_line(
    tmp_path: Path, changes: dict[str, list[Any]], columns: tuple[str, str, str], message: str
) -> None:
    features, label, user = columns
    options = Hub(
        path=saved(tmp_path / "d", {**GOOD, **changes}),
        feature_columns=(features,),
        label_column=label,
        user_column=user,
        partition="natural" if user else "iid",
        users=2,
        test_fraction=0.5,
    )

    def everything() -> None:
        data = options.load()
        data.examples(np.arange(data.users))

    with pytest.raises(ValueError, match=message) as caught:
        everything()
    assert "\n" not in str(caught.value)


def test_too_many_users_and_missing_folders_are_refused(tmp_path: Path) -> None:
    name = saved(tmp_path / "d", GOOD)
    with pytest.raises(ValueError, match=r"users must lie in 1\.\.4"):
        Hub(5, path=name, feature_columns=("x",), label_column="y", test_fraction=0.5).load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="path must name a data set on the hub or a folder"):
        Hub(path=str(tmp_path / "empty")).load()
    with pytest.raises(ValueError, match="feature_columns must name one column with dataset 'hub'"):
        Hub(path="d", feature_columns=("x", "y"))
