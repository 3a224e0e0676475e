"""Data sets and initial models, equal to the bit to what configurations gave before they were values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
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
    ("kind", "fields", "shape", "outputs", "figures", "name"),
    [
        ("mlp", {}, (64,), 10, (158.855953, 0.612582, -0.000936), "hidden0.weight"),
        ("mlp", {"hidden_units": (8, 4), "seed": 3}, (1, 28, 28), 5, (123.074153, -2.523329, -0.03541),
         "layers.hidden0.weight"),
        ("cnn", {}, (1, 8, 8), 10, (429.690806, 5.274423, -0.002496), "convolution0.weight"),
        ("cnn", {"hidden_units": (), "seed": 2}, (3, 9, 6), 4, (252.776039, 3.422995, 0.044146),
         "convolution0.weight"),
        ("logistic", {}, (60,), 10, (40.381456, 1.627415, -0.000967), "output.weight"),
        ("logistic", {"seed": 7}, (3, 2, 2), 3, (4.99949, -1.116157, 0.020163), "layers.output.weight"),
    ],
)  # fmt: skip
def test_initial_models_are_what_they_were(
    kind: str,
    fields: dict[str, Any],
    shape: tuple[int, ...],
    outputs: int,
    figures: tuple[float, float, float],
    name: str,
) -> None:
    """By sums over all weights, and the first: processors draw them alike but for the last bits."""
    value = MODELS[kind](**fields)
    module = value.build(shape, outputs)
    weights = FlatModel(module).initial().double().numpy()
    sums = np.abs(weights).sum(), (weights * np.cos(np.arange(weights.size))).sum(), weights[0]
    assert sums == pytest.approx(figures, abs=2e-5)
    assert next(iter(module.named_parameters()))[0] == name
    assert value_of(MODELS, value.to_dict()) == value
