"""Data sets in Hugging Face's format on disk: decoded, spread, and tested on people who are no users."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedmf.data import Hub

TRAIN, TEST = 120, 30


def images(count: int, seed: int) -> datasets.Dataset:
    rng = np.random.default_rng(seed)
    return datasets.Dataset.from_dict(
        {
            "image": [rng.integers(0, 256, size=(8, 6, 3), dtype=np.uint8) for _ in range(count)],
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


@pytest.mark.parametrize("partition", ["by-user", "iid", "dirichlet", "shards"])
def test_every_example_belongs_to_one_user_and_is_decoded_right(folder: str, partition: str) -> None:
    options = Hub(5, partition, path=folder, user_column="writer", seed=3, test_split="examples")  # type: ignore[arg-type]
    data = options.load()
    raw = images(TRAIN, 0)
    pixels = torch.stack([torch.from_numpy(np.asarray(image).copy()) for image in raw[:]["image"]])
    expected = pixels.permute(0, 3, 1, 2).float() / 255
    assert sorted(data.owned.order.tolist()) == list(range(TRAIN))
    for u, name in enumerate(data.user_ids):
        mine = data.owned[u]
        features, labels = data.examples(np.array([u]))
        assert torch.equal(features, expected[mine])
        assert labels.tolist() == np.asarray(raw[:]["label"])[mine].tolist()
        if partition == "by-user":
            assert {raw[:]["writer"][i] for i in mine} == {name}
    assert data.test_features.shape == (TEST, 3, 8, 6)
    assert sorted(data.test_labels.tolist()) == sorted(images(TEST, 1)[:]["label"])
    assert (data.users, data.classes) == (7 if partition == "by-user" else 5, 4)


def test_rows_of_training_users_in_the_test_split_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    train, test = images(TRAIN, 0), images(TEST, 1)
    writers = ["w1" if i % 3 else "stranger" for i in range(TEST)]
    test = test.remove_columns("writer").add_column("writer", writers)  # type: ignore[call-arg]
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "saved")
    options = Hub(7, "by-user", path=str(tmp_path / "saved"), user_column="writer", class_names=("0..3",))
    apart = options.load()
    assert (len(apart.test_labels), apart.test_owner) == (10, "held-out users")
    assert apart.test_labels.tolist() == test[:]["label"][::3]
    assert (apart.users, apart.sizes(np.arange(7)).sum()) == (7, TRAIN)
    mixed = replace(options, test_split="examples").load()
    assert (len(mixed.test_labels), mixed.test_owner) == (TEST, "training users")
    unnamed = test.remove_columns("writer")
    datasets.DatasetDict({"train": train, "test": unnamed}).save_to_disk(tmp_path / "unnamed")
    with pytest.raises(ValueError, match=r"split 'test' of .* must have column 'writer'"):
        replace(options, path=str(tmp_path / "unnamed")).load()
    same = datasets.DatasetDict({"train": train, "test": images(TEST, 1)})
    same.save_to_disk(tmp_path / "same")
    with pytest.raises(ValueError, match="test part must hold a row"):
        replace(options, path=str(tmp_path / "same")).load()


GOOD = {"x": [[float(i), 1.0] for i in range(8)], "y": list("abababab"), "who": ["u", "v"] * 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"feature_columns": ("z",)}, "column 'z' is missing; .* has x, y, who, one"),
    "texts": ({"feature_columns": ("who",)}, "test part must hold a row .* whose features can be read"),
    "one label": ({"label_column": "one"}, "label_column must hold at least two labels; got a"),
    "users": ({"users": 5}, r"users must lie in 1\.\.4"),
    "two columns": ({"feature_columns": ("x", "y")}, "must name one column with dataset 'hub'"),
    "nowhere": ({"path": "nowhere"}, "path must name a data set on the hub or a folder"),
}


def test_bad_data_are_one_line(tmp_path: Path) -> None:
    train = datasets.Dataset.from_dict({**GOOD, "one": ["a"] * 8})
    datasets.DatasetDict({"train": train}).save_to_disk(tmp_path / "d")
    given = {"path": str(tmp_path / "d"), "feature_columns": ("x",), "label_column": "y", "users": 2}
    for changes, message in REFUSED.values():
        with pytest.raises(ValueError, match=message) as caught:
            Hub(**{**given, "test_fraction": 0.5, **changes}).load()  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


GOOD_PICTURE = png(np.full((4, 6, 3), 9, dtype=np.uint8))
PICTURES: dict[str, bytes | None] = {
    "no picture": b"nothing",
    "a picture that breaks off": GOOD_PICTURE[:40],
    "another shape": png(np.zeros((5, 6, 3), dtype=np.uint8)),
    "16 bits": png(np.zeros((4, 6), dtype=np.uint16)),
    "null": None,
}


@pytest.mark.parametrize("case", PICTURES)
def test_a_picture_that_cannot_be_decoded_moves_its_owner_alone(tmp_path: Path, case: str) -> None:
    (tmp_path / "users.txt").write_text("\n".join(f"u{u}" for u in range(5)))
    declared: dict[str, Any] = {"class_names": ("0..2",), "input_shape": (3, 4, 6), "user_column": "who"}
    people = {"partition": "by-user", "user_list": str(tmp_path / "users.txt"), "test_split": "examples"}
    kinds = {"image": datasets.Image(), "label": datasets.Value("int64"), "who": datasets.Value("string")}
    loads = []
    for name, hostile in (("clean", GOOD_PICTURE), ("hostile", PICTURES[case])):
        cells: list[Any] = [{"bytes": GOOD_PICTURE, "path": None}] * 30
        cells[17] = None if hostile is None else {"bytes": hostile, "path": None}
        columns = {"image": cells, "label": [*range(3)] * 10, "who": [f"u{i % 5}" for i in range(30)]}
        split = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
        datasets.DatasetDict({"train": split}).save_to_disk(tmp_path / name)
        options = Hub(5, path=str(tmp_path / name), **declared, **people)  # type: ignore[arg-type]
        assert options.undeclared() == ()
        loads.append(options.load())
    assert torch.equal(loads[0].test_features, loads[1].test_features)
    for user in np.arange(5):
        (x, y), (a, b) = (data.examples(user[None]) for data in loads)
        assert (torch.equal(x, a) and torch.equal(y, b)) == (user != 2)
        assert len(y) - len(b) == (user == 2)
