"""Every output of a stream follows from released integers, the plan and public values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.released_integers import captured
from support.streams import BUDGET, D, N, run_once, sample, write_rows

from fedmf.data import Schema
from fedmf.moments.running import RunningWorkload
from fedmf.noise.key import Domain
from fedmf.streaming import Settings, StreamPlan, StreamState
from fedmf.streaming.output import ParquetFile, csv_lines
from fedmf.streaming.private_release import Renderer
from fedmf.streaming.state import ReleaseBlock


def replayed(
    plan: StreamPlan, public: list[tuple[str, ...]], integers: dict[Domain, list[np.ndarray]]
) -> ReleaseBlock:
    """The released numbers again, without a key, sums, rows or the order in which rows came
    together.

    Args:
        plan: as it was recorded.
        public: the labels of each release.
        integers: the releases of each domain, a row a step.
    """
    made = plan.mechanism
    units = made.rows(plan.second_moment).units
    first = torch.from_numpy(np.stack(integers[Domain.FIRST_MOMENT])).double() * units[0]
    if made.method.second_noise:
        second = torch.from_numpy(np.stack(integers[Domain.SECOND_MOMENT])).double() * units[1]
    else:
        second = plan.second_moment.features_of_each(first)
        variances = torch.from_numpy(made.first.noise_row_variances()[: len(first)].copy())
        second = (
            second
            - made.first_std**2 * variances[:, None] * plan.second_moment.of_isotropic_noise()
        )
    works = plan.workloads
    moments = zip(works, (first, second), strict=True)
    numbers = [RunningWorkload(A, moment.shape[1]).extend(moment) for A, moment in moments]
    t = np.minimum(np.arange(1, len(first) + 1) * plan.every, plan.rounds)
    return ReleaseBlock(0, t, torch.cat(numbers, dim=1).numpy(), public)


def write(path: Path, renderer: Renderer, found: ReleaseBlock) -> None:
    if path.suffix == ".csv":
        path.write_bytes(csv_lines(renderer, found))
        return

    def part(start: int, stop: int) -> ReleaseBlock:
        cut = slice(start, stop)
        return ReleaseBlock(start, found.t[cut], found.numbers[cut], found.labels[cut])

    ParquetFile(path, True).finish(renderer, part, len(found))


NUMBER = {"kind": "number", "lower": -1, "upper": 1, "nullable": True}
CASES: dict[str, dict[str, Any]] = {
    "joint": {"timestamp": "x2", "columns": ("x0", "x1")},
    "joint, two matrices": {
        "mechanisms": ("bisr", "blt"),
        "workloads": ("window:3", "exponential:0.8"),
        "release_every": 4,
    },
    "independent": {
        "method": "independent",
        "second_moment": "diagonal",
        "mechanisms": ("banded-toeplitz",),
    },
    "concatenated": {
        "method": "concatenated",
        "second_moment": "trace",
        "adjacency": "replace-one",
    },
    "post-processing": {
        "method": "post-processing",
        "mechanisms": ("cgd",),
        "workloads": ("prefix",),
    },
    "post-processing, blocks": {"method": "post-processing", "second_moment": "1,2"},
    "counted rows": {
        "schema": Schema.from_dict({f"x{i}": NUMBER for i in range(D)}),
        "release_every": 7,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_every_line_is_a_function_of_the_integers_that_left(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmf.streaming.stream_run._MOST_ROWS", 8)
    settings = Settings(**{**BUDGET, "seed": None, "rounds": N, **CASES[name]})
    x = 0.5 * sample()
    source = write_rows(tmp_path / "rows.csv", x)
    part = write_rows(tmp_path / "part.csv", x[:17])
    for output in ("out.csv", "out.parquet"):
        folder = tmp_path / output.rpartition(".")[2]
        folder.mkdir()
        with captured() as integers:
            for rows in (part, source):  # an interruption makes no difference
                run_once(folder, settings, rows, output, raw=True)
        with StreamState.open(folder / "state") as state:
            recorded = json.loads(json.dumps(state.plan.to_dict()))
            stored = state.releases(0, state.position.records)
        again = replayed(StreamPlan.from_dict(recorded), list(stored.labels), integers)
        assert again.t.tolist() == stored.t.tolist()
        write(folder / f"again-{output}", Renderer(StreamPlan.from_dict(recorded), raw=True), again)
        assert (folder / f"again-{output}").read_bytes() == (folder / output).read_bytes()
