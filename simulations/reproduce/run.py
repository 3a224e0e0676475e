"""Every table and figure of the five papers and of ours that needs no training, by name.

    python simulations/reproduce/run.py --list
    python simulations/reproduce/run.py lambda-cgd-table4 nu-dp-ftrl [--full] [--out DIR]
    python simulations/reproduce/run.py all

Each item ends with a line: how far it agrees with the paper, whether the committed result is what
the code gives now, what was not run and why. The exit code is 1 if a result is stale or a
difference is not understood. Training figures: simulations/papers/run.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from items import CATALOGUE, Command, Item
from verdicts import Verdict, judge

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


def reproduce(items: Sequence[Item], full: bool, out: Path | None) -> list[Verdict]:
    """Run each item in a copy of simulations/, print its verdict, and put what it wrote into a
    folder.

    Committed results stay as they are.

    Args:
        items: what; a script that makes several is run once.
        full: the full form instead of the quick one.
        out: where pages and pictures go; nowhere if None.
    """
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="fedmf-reproduce-") as folder:
        place = Path(folder)
        shutil.copytree(
            ROOT / "simulations",
            place / "simulations",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        fresh = place / "docs" / "results"
        fresh.mkdir(parents=True)
        done: dict[Command, str] = {}
        for at, item in enumerate(items, 1):
            command = item.command(full)
            _say(f"[{at}/{len(items)}] {item.name}: {item.paper}, {item.item} ({item.setting})")
            if not command:
                verdict = Verdict(item.name, f"because {item.unrun}.", True, "not run")
            else:
                started = time.monotonic()
                if command not in done:
                    done[command] = _run(command, item, place)
                failure = done[command]
                verdict = (
                    Verdict(item.name, failure, False)
                    if failure
                    else judge(item, fresh, RESULTS, full)
                )
                _say(f"  {' '.join(command)}: {time.monotonic() - started:.0f} s")
                if out is not None:
                    _copy(item, fresh, out)
            _say(f"  {verdict}")
            verdicts.append(verdict)
    return verdicts


def _run(command: Command, item: Item, place: Path) -> str:
    """Run a script; one line if it failed, else nothing."""
    for name in item.kept:
        shutil.copy(RESULTS / name, place / "docs" / "results" / name)
    script, *arguments = command
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    finished = subprocess.run(
        [sys.executable, str(place / "simulations" / script), *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode == 0:
        return ""
    last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{script} failed with exit code {finished.returncode}: {last}"


def _copy(item: Item, fresh: Path, out: Path) -> None:
    for name in item.results:
        if (fresh / name).exists():
            out.mkdir(parents=True, exist_ok=True)
            shutil.copy(fresh / name, out / name)


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", nargs="*", choices=[*CATALOGUE, "all", []], help="of the list, or all"
    )
    parser.add_argument(
        "--full", action="store_true", help="all rows, replicas and widths: hours for some"
    )
    parser.add_argument(
        "--out", type=Path, help="where pages and pictures go; docs/results renews them"
    )
    parser.add_argument("--list", action="store_true", help="print the list")
    options = parser.parse_args()
    if options.list or not options.name:
        for item in CATALOGUE.values():
            print(f"{item.name:<26} {item.paper:<10} {item.item:<30} {item.setting}")
        return 0
    chosen = CATALOGUE if "all" in options.name else dict.fromkeys(options.name)
    started = time.monotonic()
    verdicts = reproduce([CATALOGUE[name] for name in chosen], options.full, options.out)
    bad = sum(not verdict.good for verdict in verdicts)
    print(
        f"\n{len(verdicts)} items in {time.monotonic() - started:.0f} s, {bad} stale or"
        " unexplained:"
    )
    print(*verdicts, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
