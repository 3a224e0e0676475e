"""Benchmarks that stay true: one JSON with machine and commit, and a page that draws them over commits.

    python simulations/benchmarks/over_commits.py [--only NAME]...   minutes: `make benchmarks`
    python simulations/benchmarks/over_commits.py --draw             the page again, from what is kept

Each benchmark of this folder that prints rows as JSON runs with small settings. What they say is kept in
docs/results/benchmarks.json under the commit; docs/results/benchmarks.md has the newest figures and a picture
of all. A ratio is against a baseline that ran beside it, so it means the same on any machine; a figure alone
does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = ROOT / "docs/results/benchmarks.json"
PAGE, PICTURE = KEPT.with_suffix(".md"), KEPT.with_suffix(".svg")
#: Small settings: what changes by tenths shows, what changes by hundredths is for the benchmarks themselves.
JOBS = {
    "noise": [
        "noise.py",
        "--elements",
        "2000000",
        "--ring-elements",
        "200000",
        "--repeats",
        "5",
        "--threads",
        "1",
    ],
    "rounds": ["engine.py", "--models", "mlp", "--repeats", "1"],
    "wrapped rounds": ["wrapped_round.py", "--sizes", "10000", "1000000", "--cohorts", "10", "--rounds", "4"],
    "streams": ["stream.py", "--rows", "20000", "--only", "csv to parquet"],
    "moments": ["moments.py", "--repeats", "5"],
    "commits": ["ledger.py", "--commits", "30"],
    "amplified accounting": ["accounting.py"],
}


def machine() -> dict[str, Any]:
    """What figures depend on beside the code."""
    import torch

    cpu = re.search(r"^model name\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal: +(\d+)", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "processor": cpu[1] if cpu else platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "gibibytes": round(int(memory[1]) / 2**20) if memory else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numba", "numpy")},
    }


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def commit() -> dict[str, Any]:
    """Which, of when, and whether something was changed since."""

    def said(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = bool(said("status", "--porcelain", "--untracked-files=no", "fedmf"))
    return {
        "commit": said("rev-parse", "--short=10", "HEAD"),
        "date": said("log", "-1", "--format=%cI"),
        "changed": changed,
    }


def measured(names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each benchmark: name, value, unit, ratio if it has a baseline."""
    found = {}
    for name in names:
        begun = time.monotonic()
        script, *options = JOBS[name]
        command = [sys.executable, str(HERE / script), *options, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"{name} failed: {' '.join(done.stderr.split())[-300:]}")
        found[name] = [_row(row) for row in _objects(done.stdout)]
        print(f"{name}: {len(found[name])} rows in {time.monotonic() - begun:.0f} s", flush=True)
    return found


def _objects(text: str) -> list[dict[str, Any]]:
    """A list of objects, or one a line."""
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    if "server" in row:  # a cell of wrapped_round.py
        name = f"d = {row['d']:g}, m = {row['m']}, {row['server']}"
        row = {"name": name, "value": row["seconds"], "unit": "processor s a round", "ratio": row["ratio"]}
    return {key: _short(row.get(key)) for key in ("name", "value", "unit", "ratio")}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def draw(entries: list[dict[str, Any]]) -> None:
    """A panel for each benchmark: every row over commits, as many times its first figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in JOBS if any(name in entry["rows"] for entry in entries)]
    figure, axes = plt.subplots(
        -(-len(names) // 2), 2, figsize=(11, 2.9 * -(-len(names) // 2)), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.remove()
    for axis, name in zip(axes.flat, names, strict=False):
        lines: dict[str, list[tuple[int, float]]] = {}
        for at, entry in enumerate(entries):
            for row in entry["rows"].get(name, []):
                figure_of = row["ratio"] if row["ratio"] is not None else row["value"]
                lines.setdefault(row["name"], []).append((at, figure_of))
        for row, points in lines.items():
            first = points[0][1] or 1.0
            axis.plot([at for at, _ in points], [value / first for _, value in points], "o-", label=row[:46])
        axis.set_xticks(range(len(entries)), [entry["commit"][:7] for entry in entries], fontsize=8)
        axis.set(title=name, xlabel="commit", ylabel="times its first figure", yscale="log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=5, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    plt.rcParams["svg.hashsalt"] = "fedmf"
    figure.savefig(PICTURE, metadata={"Date": None})


def write_page(entries: list[dict[str, Any]]) -> None:
    """The newest figures as tables, between what the page says by hand."""
    newest = entries[-1]
    runs = [_told(entry) for entry in entries]
    lines = ["![Every figure over commits, as many times the first](benchmarks.svg)", ""]
    lines += ["| commit | of | machine | Python, torch, numba | load |", "|---|---|---|---|---|", *runs]
    for name, rows in newest["rows"].items():
        lines += [
            "",
            f"### {name[0].upper()}{name[1:]}",
            "",
            "| row | figure | unit | ratio |",
            "|---|---|---|---|",
        ]
        for row in rows:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:g}"
            lines.append(f"| {row['name']} | {row['value']:g} | {row['unit']} | {ratio} |")
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition("<!-- figures -->\n")
    PAGE.write_text(before + mark + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _told(entry: dict[str, Any]) -> str:
    """Commit and machine as a row."""
    on, changed = entry["machine"], " and changes" if entry["changed"] else ""
    machine = f"{on['processor']}, {on['capability']}, {on['cores']} cores, {on['gibibytes']} GiB"
    versions = f"{on['python']}, {on['torch']}, {on['numba']}"
    load = " to ".join(map(str, entry["load"]))
    return f"| `{entry['commit']}`{changed} | {entry['date'][:10]} | {machine} | {versions} | {load} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=[*JOBS], default=[], help="repeatable; default: all"
    )
    parser.add_argument("--draw", action="store_true", help="the page again, without measuring")
    options = parser.parse_args()
    entries = json.loads(KEPT.read_text()) if KEPT.exists() else []
    if not options.draw:
        load = os.getloadavg()[0]
        rows = measured(options.only or [*JOBS])
        entry = {
            **commit(),
            "machine": machine(),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "rows": rows,
        }
        entries = [other for other in entries if other["commit"] != entry["commit"]] + [entry]
        KEPT.write_text(json.dumps(entries, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    draw(entries)
    write_page(entries)


if __name__ == "__main__":
    main()
