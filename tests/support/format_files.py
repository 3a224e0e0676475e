"""Small files in the formats of the standard benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from PIL import Image

__all__ = [
    "USERS",
    "leaf_user",
    "write_cifar",
    "write_image_folder",
    "write_leaf",
    "write_roster",
    "write_sentences",
]

#: Ids in the order of rosters that tests write.
USERS = ("u3", "u1", "u0", "u2", "u5", "u4")


def write_roster(folder: Path) -> str:
    """A file with all users' ids."""
    (folder / "users.txt").write_text("\n".join(USERS), encoding="utf-8")
    return str(folder / "users.txt")


def write_image_folder(folder: Path, per_user: int = 4) -> str:
    """``images/user/class/name.png`` of 4×5 pixels in three colours, and ``index.csv`` that lists them."""
    rng = np.random.default_rng(2)
    lines = ["path,label,user"]
    for user in USERS:
        for i in range(per_user):
            label = "cat" if i % 2 else "dog"
            home = folder / "images" / user / label
            home.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, size=(4, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(home / f"{i}.png")
            lines.append(f"{user}/{label}/{i}.png,{label},{user}")
    (folder / "index.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "images")


def write_cifar(folder: Path, records: int = 12) -> str:
    """The six files of CIFAR-10's binary version, with few records."""
    rng = np.random.default_rng(3)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        content = rng.integers(0, 256, size=(records, 3073), dtype=np.uint8)
        content[:, 0] = np.arange(records) % 10
        (folder / name).write_bytes(content.tobytes())
    return str(folder)


def leaf_user(seed: int, examples: int = 4, width: int = 6) -> dict[str, Any]:
    """What LEAF's files hold of one user."""
    rng = np.random.default_rng(seed)
    return {"x": rng.random((examples, width)).round(4).tolist(), "y": [i % 3 for i in range(examples)]}


def write_leaf(folder: Path, changed: dict[str, Any] | None = None, test: bool = True, width: int = 6) -> str:
    """LEAF's folders train and test; in the second other people, and one user of the first."""
    data = {user: leaf_user(i, width=width) for i, user in enumerate(USERS)} | (changed or {})
    parts = {"train": data}
    if test:
        parts["test"] = {user: leaf_user(i, width=width) for user, i in (("v0", 50), ("v1", 51), ("u1", 52))}
    for part, users in parts.items():
        (folder / part).mkdir(exist_ok=True)
        for i, names in enumerate((list(users)[::2], list(users)[1::2])):
            content = {
                "users": names,
                "num_samples": [4] * len(names),
                "user_data": {name: users[name] for name in names},
            }
            (folder / part / f"all_data_{i}.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


def write_sentences(folder: Path, place: int = -1, value: Any = None, test: bool = True) -> str:
    """Parquet folders train and test of sentences below 50; one list of train may be changed."""
    rng = np.random.default_rng(4)
    for part, people in (("train", USERS), ("test", ("v0", "v1", "u1"))):
        if part == "test" and not test:
            continue
        (folder / part).mkdir(exist_ok=True)
        names = [people[i % len(people)] for i in range(30)]
        tokens: list[Any] = [rng.integers(1, 50, size=rng.integers(2, 9)).tolist() for _ in names]
        if part == "train" and place >= 0:
            tokens[place] = value
        table = arrow.table({"user": names, "tokens": arrow.array(tokens, arrow.list_(arrow.int32()))})
        parquet.write_table(table.slice(0, 20), folder / part / "a.parquet")
        parquet.write_table(table.slice(20), folder / part / "b.parquet")
    return str(folder)
