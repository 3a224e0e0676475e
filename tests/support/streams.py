"""Small streams from files, run whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_run import open_run

N = 30
D = 3
BUDGET: dict[str, Any] = {"clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5, "seed": 5}


def write_rows(path: Path, x: np.ndarray, users: list[str] | None = None) -> Path:
    names = [f"x{i}" for i in range(x.shape[1])]
    lines = [",".join([*names, *(["user"] if users else [])])]
    for i, row in enumerate(x.tolist()):
        lines.append(",".join([*map(repr, row), *([users[i]] if users else [])]))
    path.write_text("\n".join(lines) + "\n")
    return path


def sample(n: int = N, d: int = D) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, d))


def named(settings: Settings, source: Path) -> Settings:
    """With the columns of a file of `write_rows` as numbers, unless columns or a schema are
    given.
    """
    if settings.columns or settings.schema or source.suffix != ".csv":
        return settings
    names = source.read_text().partition("\n")[0].split(",")
    return replace(settings, columns=tuple(name for name in names if name != settings.user_column))


def run_once(
    folder: Path, settings: Settings, source: Path, output: str = "out.jsonl", **more: Any
) -> dict:
    settings = named(settings, source)
    with open_run(folder / "state", settings, source, folder / output, **more) as (run, reader):
        run.feed(reader, whole=True)
        return {**run.conclude(), "counts": run.position.counts()}


def releases(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
