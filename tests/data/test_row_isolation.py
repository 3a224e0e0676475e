"""Whatever stands in a row, the data of every user who does not own it keep their bits."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from fedmf.data import FederatedDataset, Hub, Table, TableColumns, TableRows, read_table

USERS, ROWS = 10, 60
DECLARED: dict[str, Any] = {
    "label_column": "y",
    "class_names": ("0..2",),
    "user_column": "who",
    "seed": 1,
}
#: With each partition the users' own names or made-up ones, and whose the test part is.
SPREADS: dict[str, dict[str, Any]] = {
    "by-user": {"partition": "natural", "users": 8},
    "by-example": {"partition": "natural", "users": 10, "hold_out": "examples"},
    "iid": {"partition": "iid", "users": 7},
    "power-law": {"partition": "power-law", "users": 7},
}


def by_turns(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each of these with one spread."""
    spreads = [*SPREADS.values()]
    return pytest.mark.parametrize(
        ("hostile", "spread"), [pytest.param(name, spreads[i % 4], id=name) for i, name in enumerate(names)]
    )


#: What becomes of the row: its owner's features are NaN, it is nobody's, or it stays what it was.
FAULTY, GONE, KEPT = "faulty", "gone", "kept"


def roster(folder: Path) -> str:
    (folder / "users.txt").write_text("".join(f"u{u}\n" for u in (3, 1, 0, 2, 9, 4, 8, 6, 5, 7)))
    return str(folder / "users.txt")


def owner_and_row(dataset: FederatedDataset, owned: Any) -> tuple[int, int]:
    """A user with several training rows, and one of them in the middle of the file."""
    user = int(np.argmax(dataset.sizes(np.arange(dataset.users))))
    return user, int(owned[user][len(owned[user]) // 2])


def check(clean: FederatedDataset, hostile: FederatedDataset, user: int, fate: str) -> None:
    """All that does not belong to the user is the same to the bit; what does is as it must be."""
    assert list(clean.user_ids) == list(hostile.user_ids)
    assert (clean.classes, clean.structure, clean.test_owner) == (
        hostile.classes,
        hostile.structure,
        hostile.test_owner,
    )
    assert torch.equal(clean.test_features, hostile.test_features)
    assert torch.equal(clean.test_labels, hostile.test_labels)
    everybody = np.arange(clean.users)
    assert np.delete(clean.sizes(everybody) - hostile.sizes(everybody), user).tolist() == [0] * (
        clean.users - 1
    )
    for other in np.delete(everybody, user):
        alone, company = np.array([other]), np.array([user, other])
        for x, y, z in zip(
            clean.examples(alone), hostile.examples(alone), hostile.examples(company), strict=True
        ):
            assert torch.equal(x, y)
            assert torch.equal(x, z[len(z) - len(x) :])
    features, labels = hostile.examples(np.array([user]))
    lost = int(clean.sizes(np.array([user]))[0] - hostile.sizes(np.array([user]))[0])
    broken = torch.isnan(features).flatten(1).all(dim=1).sum().item()
    assert (lost, broken) == {GONE: (1, 0), FAULTY: (0, 1), KEPT: (0, 0)}[fate]
    assert torch.isfinite(features).flatten(1).all(dim=1).sum() == len(features) - broken
    assert ((labels >= 0) & (labels < clean.classes)).all()


def fate_in(spread: dict[str, Any], of_a_name: bool, fate: str) -> str:
    """Whose row it was decides nothing where users are made up."""
    return KEPT if of_a_name and spread["partition"] != "natural" else fate


def csv_line(row: int) -> bytes:
    return f"u{row % USERS},{row}.5,{-row},{row % 3}\n".encode()


LINES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not a number": (lambda line: line.replace(b".5", b"abc"), GONE),
    "nan": (lambda line: line.replace(b",-", b",nan,-", 1).replace(b"nan,-", b"nan"), GONE),
    "infinite": (lambda line: line.replace(b".5", b"e999"), GONE),
    "too large for float32": (lambda line: line.replace(b".5", b"e39"), GONE),
    "missing": (lambda line: line.replace(b",-", b",", 1).split(b",")[0] + b",,1,1\n", GONE),
    "a field too many": (lambda line: line.replace(b"\n", b",4\n"), GONE),
    "fields too few": (lambda line: line[: line.index(b",-")] + b"\n", GONE),
    "not UTF-8": (lambda line: line.replace(b".5", b"\xff"), GONE),
    "a user who is not UTF-8": (lambda line: b"\xff" + line, GONE),
    "a label that is not UTF-8": (lambda line: line.replace(b"\n", b"\xff\n"), GONE),
    "a quote that never ends": (lambda line: line.replace(b",-", b',"-', 1), GONE),
    "a quoted label that never ends": (lambda line: line[:-2] + b'"' + line[-2:], GONE),
    "a quoted user that never ends": (lambda line: b'"' + line, GONE),
    "a quoted text": (
        lambda line: b",".join([*line.split(b",")[:2], b'"much, or ""more"""', line[-2:]]),
        GONE,
    ),
    "a carriage return": (lambda line: line.replace(b".5", b"\r"), GONE),
    "a zero byte": (lambda line: line.replace(b".5", b"\x00"), GONE),
    "a rare label": (lambda line: line[:-2] + b"7\n", GONE),
    "a negative label": (lambda line: line[:-2] + b"-1\n", GONE),
    "no label": (lambda line: line[:-2] + b"\n", GONE),
    "no user": (lambda line: line[line.index(b",") :], GONE),
    "a stranger": (lambda line: b"x" + line, GONE),
    "a long field": (lambda line: line.replace(b".5", b"x" * 300_000), GONE),
}


NAMES = ("a user who is not UTF-8", "no user", "a stranger")


def table_of(folder: Path, suffix: str, spread: dict[str, Any], **fields: Any) -> Table:
    keys = {**DECLARED, "feature_columns": ("a", "b"), "input_shape": (2,), "roster": roster(folder)}
    return Table(path=str(folder / f"rows{suffix}"), **{**keys, **spread, **fields})


@by_turns(LINES)
def test_a_line_of_a_csv_file(tmp_path: Path, hostile: str, spread: dict[str, Any]) -> None:
    options = table_of(tmp_path, ".csv", spread)
    lines, (change, fate) = [csv_line(row) for row in range(ROWS)], LINES[hostile]
    (tmp_path / "rows.csv").write_bytes(b"who,a,b,y\n" + b"".join(lines))
    clean = options.load()
    user, row = owner_and_row(clean, clean.owned)
    lines[row] = change(lines[row])
    assert lines[row] != csv_line(row)
    (tmp_path / "rows.csv").write_bytes(b"who,a,b,y\n" + b"".join(lines))
    check(clean, options.load(), user, fate_in(spread, hostile in NAMES, fate))


@pytest.mark.parametrize("seed", range(5))
def test_a_line_is_read_the_same_in_any_company(tmp_path: Path, seed: int) -> None:
    lines = [change(csv_line(row)) for row, (change, _) in enumerate(LINES.values())]
    lines += [csv_line(row) for row in range(30)] + [
        b"\xef\xbb\xbf" + csv_line(4),
        b" \n",
        b'"u1",1_0," 2",0\n',
    ]
    np.random.default_rng(seed).shuffle(lines)  # type: ignore[arg-type]
    columns = TableColumns("y", ("a", "b"), "who", ("0", "1", "2"), tuple(f"u{u}" for u in range(USERS)))

    def read(part: list[bytes]) -> TableRows:
        (tmp_path / "rows.csv").write_bytes(b"who,a,b,y\n" + b"".join(part))
        return read_table(tmp_path / "rows.csv", columns)

    together, alone = read(lines), [read([line]) for line in lines]
    for name in ("features", "labels", "owner"):
        expected = np.concatenate([getattr(rows, name) for rows in alone])
        assert np.array_equal(getattr(together, name), expected, equal_nan=name == "features")


Columns = dict[str, list[Any]]
VALUES: dict[str, tuple[str, Any, str]] = {
    "null": ("a", None, GONE),
    "nan": ("b", float("nan"), GONE),
    "infinite": ("b", float("-inf"), GONE),
    "too large for float32": ("a", 1e39, GONE),
    "a rare label": ("y", 7, GONE),
    "a negative label": ("y", -100, GONE),
    "no label": ("y", None, GONE),
    "no user": ("who", None, GONE),
    "a stranger": ("who", b"stranger", GONE),
    "a user who is not UTF-8": ("who", b"\xff\xfe", GONE),
    "a list of another length": ("x", [1.0], GONE),
    "an empty list": ("x", [], GONE),
    "no list": ("x", None, GONE),
    "a list with a null": ("x", [1.0, None], GONE),
    "a list with nan": ("x", [float("nan"), 2.0], GONE),
}


def write_parquet(path: Path, place: tuple[str, int] | None = None, value: Any = None) -> None:
    columns: Columns = {
        "who": [f"u{row % USERS}".encode() for row in range(ROWS)],
        "a": [row + 0.5 for row in range(ROWS)],
        "b": [-1.0 * row for row in range(ROWS)],
        "x": [[row + 0.25, 1.0] for row in range(ROWS)],
        "y": [row % 3 for row in range(ROWS)],
    }
    if place is not None:
        columns[place[0]][place[1]] = value
    who = arrow.array(columns.pop("who"), arrow.binary()).view(arrow.string())
    parquet.write_table(arrow.table({"who": who, **columns}), path)


@by_turns(VALUES)
def test_a_row_of_a_parquet_file(tmp_path: Path, hostile: str, spread: dict[str, Any]) -> None:
    column, value, fate = VALUES[hostile]
    features = ("x",) if column == "x" else ("a", "b")
    options = table_of(tmp_path, ".parquet", spread, feature_columns=features)
    write_parquet(tmp_path / "rows.parquet")
    clean = options.load()
    user, row = owner_and_row(clean, clean.owned)
    write_parquet(tmp_path / "rows.parquet", (column, row), value)
    check(clean, options.load(), user, fate_in(spread, column == "who", fate))


def png(pixels: Any) -> dict[str, Any]:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "png")
    return {"bytes": held.getvalue(), "path": None}


def image(row: int) -> dict[str, Any]:
    return png(np.random.default_rng(row).integers(0, 256, size=(4, 6, 3), dtype=np.uint8))


PICTURES: dict[str, tuple[str, Callable[[], Any], str]] = {
    "no image": ("image", lambda: {"bytes": b"GIF89a, not", "path": None}, FAULTY),
    "half an image": ("image", lambda: {"bytes": image(1)["bytes"][:90], "path": None}, FAULTY),
    "another size": ("image", lambda: png(np.zeros((5, 6, 3), dtype=np.uint8)), FAULTY),
    "grey": ("image", lambda: png(np.zeros((4, 6), dtype=np.uint8)), FAULTY),
    "16 bits": ("image", lambda: png(np.zeros((4, 6), dtype=np.uint16)), FAULTY),
    "null": ("image", lambda: None, FAULTY),
    "a rare label": ("y", lambda: 7, GONE),
    "a negative label": ("y", lambda: -100, GONE),
    "no label": ("y", lambda: None, GONE),
    "no user": ("who", lambda: None, GONE),
    "a stranger": ("who", lambda: "stranger", GONE),
}
FEATURES = datasets.Features(
    {"image": datasets.Image(), "y": datasets.Value("int64"), "who": datasets.Value("string")}
)


def write_pictures(path: Path, place: tuple[str, int] | None = None, value: Any = None) -> None:
    columns: Columns = {
        "image": [image(row) for row in range(ROWS)],
        "y": [row % 3 for row in range(ROWS)],
        "who": [f"u{row % USERS}" for row in range(ROWS)],
    }
    if place is not None:
        columns[place[0]][place[1]] = value
    split = datasets.Dataset.from_dict(columns, features=FEATURES)
    datasets.DatasetDict({"train": split}).save_to_disk(path)


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


@by_turns(PICTURES)
def test_a_row_of_a_folder_of_images(tmp_path: Path, hostile: str, spread: dict[str, Any]) -> None:
    column, value, fate = PICTURES[hostile]
    fields = {**DECLARED, **spread, "input_shape": (3, 4, 6), "roster": roster(tmp_path)}
    write_pictures(tmp_path / "clean")
    clean = Hub(path=str(tmp_path / "clean"), **fields).load()
    user, row = owner_and_row(clean, clean._owned)
    write_pictures(tmp_path / "hostile", (column, row), value())
    hostile_world = Hub(path=str(tmp_path / "hostile"), **fields).load()
    check(clean, hostile_world, user, fate_in(spread, column == "who", fate))


def test_numbers_of_an_image_do_not_depend_on_its_companions(tmp_path: Path) -> None:
    """Stacked with a 16-bit image, bytes would not be divided by 255."""
    write_pictures(tmp_path / "d", ("image", 7), png(np.zeros((4, 6), dtype=np.uint16)))
    data = Hub(path=str(tmp_path / "d"), **DECLARED, **SPREADS["iid"], input_shape=(3, 4, 6)).load()
    features, _ = data.examples(np.arange(7))
    assert features[torch.isfinite(features)].max() <= 1
    assert torch.isnan(features).flatten(1).all(dim=1).sum() == 1


@pytest.mark.parametrize("hold_out", ["auto", "examples"])
def test_who_is_held_out_depends_on_roster_and_seed_alone(tmp_path: Path, hold_out: str) -> None:
    """Another world altogether: other rows, other sizes, users without rows."""
    users = 8 if hold_out == "auto" else 10
    spread = {"partition": "natural", "users": users, "hold_out": hold_out}
    options = table_of(tmp_path, ".csv", spread)
    worlds = []
    for rows in (range(ROWS), range(0, 2 * ROWS, 3)):
        (tmp_path / "rows.csv").write_bytes(b"who,a,b,y\n" + b"".join(csv_line(row) for row in rows))
        worlds.append(options.load())
    first, second = worlds
    assert first.user_ids == second.user_ids
    listed = [f"u{u}" for u in (3, 1, 0, 2, 9, 4, 8, 6, 5, 7)]
    assert list(first.user_ids) == [name for name in listed if name in first.user_ids]
    assert (len(first.user_ids), first.test_owner) == (
        users,
        "held-out users" if hold_out == "auto" else "training users",
    )
    (tmp_path / "rows.csv").write_bytes(
        b"who,a,b,y\n" + b"".join(csv_line(row) for row in range(ROWS) if row % USERS != 3)
    )
    third, three = options.load(), first.user_ids.index("u3") if "u3" in first.user_ids else 0
    assert third.user_ids == first.user_ids
    for u in range(users):
        same = [
            torch.equal(*pair)
            for pair in zip(first.examples(np.array([u])), third.examples(np.array([u])), strict=True)
        ]
        assert all(same) == (first.user_ids[u] != "u3")
    assert third.sizes(np.array([three]))[0] == (0 if "u3" in first.user_ids else 6)
