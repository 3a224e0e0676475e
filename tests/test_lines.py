"""Lines that are huge, rows that are wide, text that is nested: refused by size, each for
itself.
"""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from support.child_processes import in_child
from support.streams import BUDGET, releases, run_once, sample

from fedmf.data.cells import cells_of
from fedmf.data.line_reader import LONGEST_LINE
from fedmf.data.table_reader import open_table
from fedmf.streaming.settings import Settings


def write_long(path: Path, before: str, after: str) -> Path:
    """A line four times too long between others, written without holding it."""
    with path.open("wb") as file:
        file.write(before.encode())
        for _ in range(4):
            file.write(b"1" * LONGEST_LINE)
        file.write(b"\n" + after.encode())
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_line_too_long_is_a_row_of_zeros(tmp_path: Path, suffix: str) -> None:
    x = sample(6)
    numbers = dict(BUDGET, rounds=7, workloads=("prefix",))
    as_csv = [",".join(map(repr, row)) + "\n" for row in x.tolist()]
    lines = (
        ["x0,x1,x2\n", *as_csv]
        if suffix == "csv"
        else [json.dumps(row) + "\n" for row in x.tolist()]
    )
    middle = len(lines) - 3
    source = write_long(tmp_path / f"in.{suffix}", "".join(lines[:middle]), "".join(lines[middle:]))
    zero = "0,0,0\n" if suffix == "csv" else "[0, 0, 0]\n"
    other = tmp_path / f"zero.{suffix}"
    other.write_text("".join([*lines[:middle], zero, *lines[middle:]]))
    for folder in ("long", "zero"):
        (tmp_path / folder).mkdir()
    told = run_once(tmp_path / "long", Settings(**numbers), source)
    assert told["counts"]["zeroed"] == 1
    run_once(tmp_path / "zero", Settings(**numbers), other)
    assert releases(tmp_path / "long" / "out.jsonl") == releases(tmp_path / "zero" / "out.jsonl")


def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    """A line of 512 MiB, most of it a hole, read with less than 256 MiB more than before."""
    path = tmp_path / "in.csv"
    with path.open("wb") as file:
        file.write(b"who,a,y\nu0,1,0\nu1,")
        file.seek(1 << 29)
        file.write(b",1\nu2,2,1\n")

    def body() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28),) * 2)
        with open_table(path) as table:
            table.select(("who", "y"))
            rows: list[tuple[str, ...]] = []
            while (batch := table.read(99)) is not None:
                rows += zip(*map(cells_of, batch.columns.values()), strict=True)
        assert rows == [("u0", "0"), ("", ""), ("u2", "1")]

    assert in_child(body) == 0


def test_deep_json_is_a_bad_row(tmp_path: Path) -> None:
    deep = "[" * 200_000
    lines = ["[1, 2]", deep, '{"a": ' * 1000, "[0, 1]", deep + "]" * 200_000]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    told = run_once(tmp_path, Settings(**BUDGET, rounds=5), tmp_path / "in.jsonl")
    assert told["counts"]["zeroed"] == 3
