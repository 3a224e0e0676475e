"""Data sets in Hugging Face's format on disk: decoded, spread, and tested on people who are no
users.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import fedmf
from fedmf.data import Hub
from fedmf.runs.tasks import Classification

TRAIN = 120
TEST = 30


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
def quiet_and_offline(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def options(path: Path | str, **more: Any) -> Hub:
    people = Path(path) / "users.txt"
    people.write_text("\n".join(f"w{i}" for i in range(7)))
    given = {"users": 7, "partition": "by-user", "path": str(path), "class_names": ("0..3",)}
    named = {"user_column": "writer", "user_list": str(people), "input_shape": (3, 8, 6)}
    return Hub(**{**given, **named, **more})


@pytest.mark.parametrize("partition", ["by-user", "dirichlet"])
def test_every_example_belongs_to_one_user_and_is_decoded_right(
    folder: str, partition: str
) -> None:
    data = options(folder, partition=partition, seed=3, test_split="examples").load()
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
    assert (data.users, data.classes) == (7, 4)


def test_rows_of_training_users_in_the_test_split_are_left_out_unless_asked_for(
    tmp_path: Path,
) -> None:
    train = images(TRAIN, 0)
    test = images(TEST, 1)
    unnamed = test.remove_columns("writer")
    writers = ["stranger", "w1", "w1"] * (TEST // 3)
    writers[1] = ""  # perhaps a user of the run
    strangers = unnamed.add_column("writer", writers)  # type: ignore[call-arg]
    for name, tests in (
        ("apart", strangers),
        ("same", test),
        ("unnamed", unnamed),
    ):
        datasets.DatasetDict({"train": train, "test": tests}).save_to_disk(tmp_path / name)
    apart = options(tmp_path / "apart").load()
    assert (len(apart.test_labels), apart.test_owner) == (10, "held-out users")
    assert apart.test_labels.tolist() == test[:]["label"][::3]
    assert (apart.users, apart.sizes(np.arange(7)).sum()) == (7, TRAIN)
    mixed = options(tmp_path / "apart", test_split="examples").load()
    assert (len(mixed.test_labels), mixed.test_owner) == (TEST, "training users")
    for name, message in (
        ("unnamed", "split 'test' of .* must have column"),
        ("same", "test part must hold"),
    ):
        with pytest.raises(ValueError, match=message):
            options(tmp_path / name).load()


GOOD = {"x": [[float(i), 1.0] for i in range(8)], "y": list("abababab"), "who": ["u", "v"] * 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"feature_columns": ("z",)}, "column 'z' is missing; .* has x, y, who"),
    "texts": ({"feature_columns": ("who",)}, "test part must hold a row .* readable features"),
    "users": ({"users": 5}, r"users must lie in 1\.\.4"),
    "two columns": ({"feature_columns": ("x", "who")}, "must name one column with dataset 'hub'"),
    "no shape": ({"input_shape": ()}, "input_shape must be declared with dataset 'hub'"),
    "nowhere": ({"path": "nowhere"}, "path must name a data set on the hub or a folder"),
}


def test_bad_data_are_one_line(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(GOOD)}).save_to_disk(tmp_path / "d")
    given: dict[str, Any] = {
        "feature_columns": ("x",),
        "label_column": "y",
        "class_names": ("a", "b"),
    }
    given |= {"path": str(tmp_path / "d"), "input_shape": (2,), "users": 2, "test_fraction": 0.5}
    for changes, message in REFUSED.values():
        with pytest.raises(ValueError, match=message) as caught:
            Hub(**{**given, **changes}).load()
        assert "\n" not in str(caught.value)


def test_a_released_model_predicts_for_a_folder_of_images(folder: str, tmp_path: Path) -> None:
    """One cannot be read, and classes are folders, which are not read."""
    run = fedmf.Run(
        task=Classification(options(folder, test_split="examples"), fedmf.Mlp(hidden_units=(3,))),
        cohorts=fedmf.CyclicCohorts(rounds=1, users_per_round=3),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
        mechanism="identity",
    )
    fedmf.simulate(run, tmp_path / "run", progress=False)
    pictures = images(3, 2)[:]["image"]
    new = tmp_path / "new"
    for name, picture in zip(("a/x.png", "a/y.png", "b/x.png"), pictures, strict=True):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(new / name)
    (new / "a" / "y.png").write_bytes(b"no image")
    table = fedmf.predict(tmp_path / "run", new).to_pydict()
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    module = fedmf.Mlp(hidden_units=(3,)).build((3, 8, 6), 4)
    module.load_state_dict(fedmf.load_model(tmp_path / "run"))
    with torch.no_grad():
        outputs = module(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255).softmax(dim=1)
    expected = outputs[:, 2].tolist()
    assert table["probability_2"] == [pytest.approx(expected[0]), None, pytest.approx(expected[2])]
    assert table["prediction"][1] is None
    (new / "a").rename(new / "train")
    (new / "b").rename(new / "test")
    with pytest.raises(ValueError, match=r"folder without splits; .* has train, test"):
        fedmf.predict(tmp_path / "run", new)


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


def test_a_picture_that_cannot_be_decoded_moves_its_owner_alone(tmp_path: Path) -> None:
    kinds = {
        "image": datasets.Image(),
        "label": datasets.Value("int64"),
        "writer": datasets.Value("string"),
    }

    def load(name: str, picture: bytes | None) -> Any:
        cells: list[Any] = [{"bytes": GOOD_PICTURE, "path": None}] * 35
        cells[17] = {"bytes": picture, "path": None}
        if picture is None:
            cells[17] = None
        labels = [i % 3 for i in range(35)]
        writers = [f"w{i % 7}" for i in range(35)]
        columns = {"image": cells, "label": labels, "writer": writers}
        split = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
        datasets.DatasetDict({"train": split}).save_to_disk(tmp_path / name)
        return options(tmp_path / name, input_shape=(3, 4, 6), test_split="examples").load()

    clean = load("clean", GOOD_PICTURE)
    for case, picture in PICTURES.items():
        hostile = load(case, picture)
        assert torch.equal(clean.test_features, hostile.test_features)
        for user in np.arange(7):
            x, y = clean.examples(user[None])
            a, b = hostile.examples(user[None])
            assert (torch.equal(x, a) and torch.equal(y, b)) == (user != 3), case
            assert len(y) - len(b) == (user == 3)


@pytest.mark.parametrize("declared", [("a", "b", "c", "d"), ("0..3",), ("d", "b")])
@pytest.mark.parametrize("order", [["a", "b", "c", "d"], ["d", "a", "c", "b"], ["b", "d"]])
def test_classes_of_the_test_split_are_those_of_their_names(
    tmp_path: Path, declared: tuple[str, ...], order: list[str]
) -> None:
    train = images(TRAIN, 0)
    codes = [code % len(order) for code in range(TEST)]
    tests = images(TEST, 1).remove_columns("label").add_column("label", codes)  # type: ignore
    tests = tests.cast_column("label", datasets.ClassLabel(names=order))
    train.to_parquet(tmp_path / "train-0.parquet")
    tests.to_parquet(tmp_path / "test-0.parquet")
    data = options(tmp_path, class_names=declared, test_split="examples").load()
    meaning = declared if len(declared) > 1 else ("a", "b", "c", "d")
    expected = sorted(order[code] for code in codes if order[code] in meaning)
    assert sorted(meaning[label] for label in data.test_labels.tolist()) == expected


def test_class_names_that_do_not_match_are_refused_with_both_lists(tmp_path: Path) -> None:
    images(TRAIN, 0).to_parquet(tmp_path / "train-0.parquet")
    others = images(TEST, 1).cast_column("label", datasets.ClassLabel(names=["a", "b", "c", "e"]))
    others.to_parquet(tmp_path / "test-0.parquet")
    with pytest.raises(ValueError, match="'a', 'b', 'c', 'd' and 'a', 'b', 'c', 'e'"):
        options(tmp_path).load()
    images(TEST, 1).to_parquet(tmp_path / "test-0.parquet")
    with pytest.raises(ValueError, match=r"'a', 'b', 'c', 'd', or numbers from 0 to 3 .* got 'A'"):
        options(tmp_path, class_names=("A", "b")).load()
