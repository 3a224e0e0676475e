"""Data sets and initial models, equal to the bit to what configurations gave before they were values."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.data_files import digest_of, write_images, write_rows

from fedmf.data import DATASETS
from fedmf.models import MODELS, FlatModel
from fedmf.values import value_of

NATURAL_ROWS = {"label_column": "y", "user_column": "who", "partition": "natural"}
#: Digests of what `dataset_of(Config)` gave at revision 210cf2f.
RECORDED: list[tuple[str, dict[str, Any], str]] = [
    ("digits", {"users": 360}, "8f5db60a0f3c3fbb"),
    ("digits", {"seed": 3, "test_fraction": 0.3}, "6b02a7ea661552c7"),
    ("digits", {"partition": "dirichlet", "dirichlet_alpha": 0.1, "seed": 1}, "82e565afa99fcfc2"),
    ("digits", {"partition": "dirichlet"}, "4e0bcb126b12173d"),
    ("digits", {"partition": "dirichlet-sizes", "dirichlet_alpha": 0.7}, "9da7b59dd203361f"),
    ("digits", {"partition": "power-law", "size_exponent": 1.3}, "3000781c44afcad9"),
    ("digits", {"partition": "shards", "shards_per_user": 3, "input_shape": (1, 8, 8)}, "84bdf5e4ad71e5df"),
    ("synthetic", {}, "4cf920bb186d94cd"),
    (
        "synthetic",
        {
            "partition": "power-law", "size_exponent": 1.5, "examples_per_user": 9, "features": 7,
            "classes": 4, "clusters": 3, "alpha": 0.7, "beta": 0.2, "test_fraction": 0.5, "seed": 3,
        },
        "00116443ce0ca971",
    ),
    ("prototypes", {}, "937ed363dd59064a"),
    (
        "prototypes",
        {
            "partition": "dirichlet", "input_shape": (3, 5), "examples_per_user": 6, "classes": 4, "seed": 8,
            "test_fraction": 0.4,
        },
        "ba4caf231be12c61",
    ),
    ("table", {"path": "rows", **NATURAL_ROWS, "hold_out": "examples"}, "95fda03de99c8678"),
    ("table", {"path": "rows", **NATURAL_ROWS, "hold_out": "users", "seed": 2}, "f25cb93f3753f13b"),
    (
        "table",
        {
            "path": "rows", "label_column": "y", "user_column": "who", "partition": "shards",
            "hold_out": "users", "seed": 2, "users": 5,
        },
        "f23aedb348115b95",
    ),
    (
        "table",
        {
            "path": "rows", "label_column": "y", "feature_columns": ("d", "a", "b", "c"),
            "input_shape": (1, 2, 2), "users": 6, "test_fraction": 0.25,
        },
        "7bf44492e0c2cbb8",
    ),
    (
        "hub",
        {"path": "train", "user_column": "writer", "partition": "natural", "test_fraction": 0.25,
         "hold_out": "examples"},
        "dd0565496124282d",
    ),
    ("hub", {"path": "both", "seed": 4}, "7fe9e77aa0463bf5"),
    (
        "hub",
        {"path": "train", "partition": "dirichlet", "dirichlet_alpha": 0.9, "users": 4, "seed": 4},
        "0a7e0658a7306ef3",
    ),
    ("hub", {"path": "train", "partition": "power-law", "users": 4, "seed": 4}, "b9b61cd7b88934f4"),
]  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("data")
    for name in ("train", "both"):
        (root / name).mkdir()
    write_images(root / "both", "test", 20)
    images = {name: write_images(root / name) for name in ("train", "both")}
    return {"rows": write_rows(root / "rows.csv"), **images}


@pytest.mark.parametrize(("kind", "fields", "digest"), RECORDED)
def test_data_are_what_they_were(
    kind: str,
    fields: dict[str, Any],
    digest: str,
    paths: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    options = {"users": 12, **fields}
    if "path" in options:
        options["path"] = paths[options["path"]]
    value = DATASETS[kind](**options)
    assert digest_of(value.load()) == digest
    assert value_of(DATASETS, value.to_dict()) == value


@pytest.mark.parametrize(
    ("kind", "fields", "shape", "outputs", "digest", "name"),
    [
        ("mlp", {}, (64,), 10, "d647f170efe6a81e", "hidden0.weight"),
        ("mlp", {"hidden_units": (8, 4), "seed": 3}, (1, 28, 28), 5, "31bc8725dde68d67",
         "layers.hidden0.weight"),
        ("cnn", {}, (1, 8, 8), 10, "e54785dd433369ff", "convolution0.weight"),
        ("cnn", {"hidden_units": (), "seed": 2}, (3, 9, 6), 4, "146c37d60200b685", "convolution0.weight"),
        ("logistic", {}, (60,), 10, "141b42f391e61c67", "output.weight"),
        ("logistic", {"seed": 7}, (3, 2, 2), 3, "eca9e48b4c70267c", "layers.output.weight"),
    ],
)  # fmt: skip
def test_initial_models_are_what_they_were(
    kind: str, fields: dict[str, Any], shape: tuple[int, ...], outputs: int, digest: str, name: str
) -> None:
    value = MODELS[kind](**fields)
    module = value.build(shape, outputs)
    assert hashlib.sha256(FlatModel(module).initial().numpy().tobytes()).hexdigest()[:16] == digest
    assert next(iter(module.named_parameters()))[0] == name
    assert value_of(MODELS, value.to_dict()) == value
