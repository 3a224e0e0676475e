"""Folders of images: whose they are, what is read of them, and what a broken one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.format_files import USERS, write_image_folder, write_roster

from fedmf.data import DecodedRows, ImageFolder


def options(folder: Path, **fields: Any) -> ImageFolder:
    keys: dict[str, Any] = {
        "path": str(folder / "images"),
        "partition": "natural",
        "users": 4,
        "test_fraction": 0.3,
        "class_names": ("cat", "dog"),
        "input_shape": (3, 4, 5),
        "roster": write_roster(folder),
    }
    return ImageFolder(**{**keys, **fields})


def everything(data: DecodedRows) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: data.examples(np.array([data.index_of(name)])) for name in data.user_ids}


def test_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    data = options(tmp_path).load()
    assert set(data.user_ids) < set(USERS)
    assert len(data.user_ids) == 4
    assert data.test_owner == "held-out users"
    assert data.test_features.shape == (8, 3, 4, 5)
    for name, (features, labels) in everything(data).items():
        files = sorted((tmp_path / "images" / name / "cat").iterdir())
        files += sorted((tmp_path / "images" / name / "dog").iterdir())
        expected = np.stack([np.asarray(Image.open(file)) for file in files]).transpose(0, 3, 1, 2)
        assert torch.equal(features, torch.from_numpy(expected.astype(np.float32) / np.float32(255)))
        assert labels.tolist() == [0, 0, 1, 1]


def test_an_index_says_the_same_as_folders(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    folders, index = options(tmp_path), options(tmp_path, index=str(tmp_path / "index.csv"))
    first, second = folders.load(), index.load()
    assert list(first.user_ids) == list(second.user_ids)
    mine, other = everything(first), everything(second)
    for name in mine:
        order = [torch.sort(part[1], stable=True).indices for part in (mine[name], other[name])]
        assert torch.equal(mine[name][0][order[0]], other[name][0][order[1]])


def test_made_up_users_share_folders_of_classes(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    data = ImageFolder(
        path=str(tmp_path / "images" / "u1"),
        user_column="",
        users=2,
        test_fraction=0.25,
        input_shape=(1, 2, 2),
        other_sides="scaled",
    ).load()
    assert data.test_owner == "nobody"
    assert data.classes == 2
    assert data.sizes(np.arange(2)).tolist() == [2, 1]
    assert data.test_features.shape == (1, 1, 2, 2)
    assert data.examples(np.arange(2))[0].isfinite().all()


def test_without_declarations_the_first_image_says_the_shape(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    loose = options(tmp_path, class_names=(), input_shape=(), roster="")
    assert loose.load().test_features.shape[1:] == (3, 4, 5)
    assert loose.undeclared() == ("class_names", "input_shape", "roster")
    assert options(tmp_path).undeclared() == ()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])


def resize(file: Path) -> None:
    Image.new("RGB", (9, 9)).save(file)


def pretend(file: Path) -> None:
    file.write_text("no image")


BROKEN = {
    "truncated": truncate,
    "of other sides": resize,
    "no image": pretend,
    "missing": Path.unlink,
    "another format": lambda file: Image.new("RGB", (5, 4)).save(file, format="GIF"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("indexed", [False, True])
def test_a_broken_image_is_its_owners_alone(tmp_path: Path, fault: str, indexed: bool) -> None:
    write_image_folder(tmp_path)
    value = options(tmp_path, index=str(tmp_path / "index.csv") if indexed else "")
    clean = everything(value.load())
    victim = next(iter(clean))
    BROKEN[fault](tmp_path / "images" / victim / "dog" / "2.png")
    broken = everything(value.load())
    assert list(clean) == list(broken)
    for name in clean:
        if name != victim:
            assert torch.equal(clean[name][0], broken[name][0])
            assert torch.equal(clean[name][1], broken[name][1])
    unread = torch.isnan(broken[victim][0]).flatten(1).all(dim=1)
    gone = len(clean[victim][0]) - len(broken[victim][0])
    assert (int(unread.sum()), gone) == ((0, 1) if fault == "missing" and not indexed else (1, 0))
    assert broken[victim][0][~unread].isfinite().all()


def test_paths_of_an_index_stay_in_the_folder(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    outside = tmp_path / "outside.png"
    Image.new("RGB", (5, 4)).save(outside)
    value = options(tmp_path, index=str(tmp_path / "index.csv"))
    victim = value.load().user_ids[0]
    paths = (outside, "../outside.png", f"{victim}/../../outside.png", "..", ".", "nowhere.png")
    with (tmp_path / "index.csv").open("a") as file:
        file.writelines(f"{path},cat,{victim}\n" for path in (*paths, f"{victim}/dog/0.png"))
    features, _ = everything(value.load())[victim]
    unread = torch.isnan(features).flatten(1).all(dim=1)
    assert unread.tolist() == [False] * 4 + [True] * len(paths) + [False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_shape": (2, 4, 5)}, r"input_shape must be \(1, height, width\) for grey images"),
        ({"feature_columns": ("a", "b")}, "feature_columns must name the one column of paths"),
        ({"path": "nowhere"}, "path must name a folder of images; got nowhere"),
        ({"index": "users.txt"}, "index must name a .csv or .parquet file that exists"),
        ({"class_names": ("cow", "pig")}, "the test part must have an image that can be read"),
        ({"users": 6}, r"U \(users\) must be 4 with this roster"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_image_folder(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        options(tmp_path, **fields).load()
    assert "\n" not in str(caught.value)
