"""Raw tables with a data contract, against numbers as they are and against scaling by hand.

    python simulations/moments/raw_data.py [--seeds S] [--rounds N]

A stream of temperature, humidity and pressure (2,000 rows, each another user's) and training on a table of
age, height and weight (100 users, 12 rows each, the example of `fedmf init table`), both at ε = 8, δ = 1e-5
through the commands. Raw: numbers as they are, with a norm bound that holds all rows. By hand:
(x − centre)/unit by the same public constants, written into the file beforehand. Contract: the raw file.
Writes docs/results/raw-data.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
WEATHER = {"temperature": (-15, 40, 14, 12), "humidity": (0, 100, 70, 24), "pressure": (960, 1060, 1013, 14)}
PEOPLE = {"age": (0, 110, 45, 15), "height": (100, 220, 170, 10), "weight": (30, 180, 75, 14)}


def command(*words: str, folder: Path) -> str:
    known = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "fedmf", *words],
        cwd=folder,
        env=known,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def write(file: Path, header: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])


def declared(columns: dict[str, tuple[float, ...]], more: str = "") -> str:
    keys = ("lower", "upper", "centre", "unit")
    return more + "".join(
        f'[columns.{name}]\nkind = "number"\n'
        + "".join(f"{key} = {value}\n" for key, value in zip(keys, said, strict=True))
        for name, said in columns.items()
    )


def streamed(seed: int) -> dict[str, float]:
    """Root mean square over the columns of (released − true mean)/spread, by way."""
    rng = np.random.default_rng(seed)
    said = np.array(list(WEATHER.values()), dtype=float)
    centre, unit = said[:, 2], said[:, 3]
    spread = np.array([6.0, 12.0, 7.0])
    x = rng.normal(centre, spread, (2000, 3)).clip(said[:, 0], said[:, 1]).round(2)
    z = (x - centre) / unit
    largest = float(np.linalg.norm(said[:, 1]))
    bound = float(np.sqrt((np.maximum(said[:, 1] - centre, centre - said[:, 0]) ** 2 / unit**2).sum()))
    errors = {}
    with tempfile.TemporaryDirectory() as name:
        folder, names = Path(name), list(WEATHER)
        write(folder / "raw.csv", names, x.tolist())
        write(folder / "scaled.csv", names, z.tolist())
        (folder / "contract.toml").write_text(declared(WEATHER), encoding="utf-8")
        named = ("--columns", ",".join(names), "--norm-bound")
        for way, file, more in (
            ("raw", "raw", (*named, str(largest))),
            ("by hand", "scaled", (*named, str(bound))),
            ("contract", "raw", ("--contract", "contract.toml")),
        ):
            budget = ["--epsilon", "8", "--delta", "1e-5", "--seed", str(seed), "--every", "2000"]
            told = [*budget, "--each-row-a-user", "--second", "diagonal"]
            out = command("stream", "--input", f"{file}.csv", *told, *more, folder=folder)
            mean = np.array(json.loads(out.splitlines()[-1])["mean"])
            mean = centre + unit * mean if way == "by hand" else mean
            errors[way] = float(np.sqrt((((mean - x.mean(axis=0)) / spread) ** 2).mean()))
    return errors


def trained(seed: int, rounds: int) -> dict[str, float]:
    """Test accuracy by way."""
    rng = np.random.default_rng(seed)
    said = np.array(list(PEOPLE.values()), dtype=float)
    centre, unit = said[:, 2], said[:, 3]
    z = rng.standard_normal((1200, 3))
    labels = np.where(z @ [1.0, -1.0, 1.5] + 0.3 * rng.standard_normal(1200) > 0, "yes", "no")
    x = (centre + unit * z).clip(said[:, 0], said[:, 1]).round(2)
    header, found = ["user", *PEOPLE, "label"], {}
    owners = [f"u{i // 12:03}" for i in range(1200)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, values in (("raw", x), ("scaled", (x - centre) / unit)):
            cells = [[u, *v, label] for u, v, label in zip(owners, values.tolist(), labels, strict=True)]
            write(folder / f"{file}.csv", header, cells)
        (folder / "users.txt").write_text("\n".join(sorted(set(owners))) + "\n", encoding="utf-8")
        named = '[columns.user]\nkind = "user"\n[columns.label]\nkind = "category"\nwords = ["no", "yes"]\n'
        (folder / "contract.toml").write_text(declared(PEOPLE, named), encoding="utf-8")
        command("init", "table", folder=folder)
        plain = ["data.contract=", "data.feature-columns=age,height,weight", "data.input-shape=3"]
        plain += ["data.class-names=no,yes"]
        for way, file, more in (
            ("raw", "raw", plain),
            ("by hand", "scaled", plain),
            ("contract", "raw", []),
        ):
            keys = [*more, f"data.path={file}.csv", f"cohorts.rounds={rounds}", f"data.seed={seed}"]
            keys += [f"privacy.noise-seed={seed}", f"execution.evaluate-every={rounds}"]
            run = f"{way.replace(' ', '-')}-{seed}"
            command("simulate", "table.toml", *[f"--set={key}" for key in keys], "--out", run, folder=folder)
            import pandas

            found[way] = float(pandas.read_parquet(folder / run / "metrics.parquet")["accuracy"].iloc[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    ways = ("raw", "by hand", "contract")
    lines = [
        "# Raw data with a contract",
        "",
        f"`python simulations/moments/raw_data.py --seeds {asked.seeds} --rounds {asked.rounds}`",
        "",
        f"{asked.seeds} seeds, ε = 8, δ = 1e-5. Stream: weather of 2,000 rows, three columns; root mean",
        "square of (released mean − mean of the rows)/spread of the column. Table: age, height and weight of",
        f"100 users, {asked.rounds} rounds of `fedmf init table`; accuracy on the test part. Mean ± standard",
        "error over seeds.",
        "",
        "| | " + " | ".join(ways) + " |",
        "|" + 4 * "---|",
    ]
    for what, tries in (
        ("error of the stream, spreads", [streamed(seed) for seed in range(asked.seeds)]),
        ("accuracy of the table", [trained(seed, asked.rounds) for seed in range(asked.seeds)]),
    ):
        columns = [np.array([one[way] for one in tries]) for way in ways]
        said = [f"{v.mean():.3f} ± {v.std(ddof=1) / np.sqrt(len(v)):.3f}" for v in columns]
        lines.append(f"| {what} | " + " | ".join(said) + " |")
        print(lines[-1], flush=True)
    (RESULTS / "raw-data.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
