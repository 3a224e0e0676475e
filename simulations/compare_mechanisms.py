"""The README's comparison: mechanisms at the same (ε, δ, n, k, b) on the digits, by a sweep.

    python simulations/compare_mechanisms.py [--processes 2] [--output docs/results] [--sweep DIRECTORY]

The same as `fedmf sweep configs/sweeps/mechanisms.toml`, whose table and picture become
compare_mechanisms.md and .png. An interrupted sweep continues in its directory.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import fedmf

ROOT = Path(__file__).resolve().parents[1]
#: What a sweep writes, and the ending it gets here.
WRITTEN = {"table.md": "md", "comparison.png": "png"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results")
    parser.add_argument("--sweep", type=Path, help="where runs are kept; default: nowhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.sweep or Path(folder) / "sweep"
        sweep = fedmf.Sweep.from_config(ROOT / "configs/sweeps/mechanisms.toml")
        fedmf.run_sweep(sweep, place, options.processes)
        for name, ending in WRITTEN.items():
            shutil.copyfile(place / name, options.output / f"compare_mechanisms.{ending}")
    print((options.output / "compare_mechanisms.md").read_text())


if __name__ == "__main__":
    main()
