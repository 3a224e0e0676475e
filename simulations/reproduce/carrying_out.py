"""Running scripts in a copy of simulations/, so that committed results stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from items import Command, Item
from verdicts import Verdict, judge

__all__ = ["ROOT", "reproduce"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


def reproduce(
    items: Sequence[Item], full: bool, out: Path | None, say: Callable[[str], None]
) -> list[Verdict]:
    """Run each item, print its verdict, and put what it wrote into a folder.

    Args:
        items: what; a script that makes several is run once.
        full: the full form instead of the quick one.
        out: where pages and pictures go; nowhere if None.
        say: prints a line.
    """
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="fedmf-reproduce-") as folder:
        place = Path(folder)
        shutil.copytree(
            ROOT / "simulations", place / "simulations", ignore=shutil.ignore_patterns("__pycache__")
        )
        fresh = place / "docs" / "results"
        fresh.mkdir(parents=True)
        done: dict[Command, str] = {}
        for at, item in enumerate(items, 1):
            command = item.command(full)
            say(f"[{at}/{len(items)}] {item.name}: {item.paper}, {item.item} ({item.setting})")
            if not command:
                verdict = Verdict(item.name, f"because {item.unrun}.", True, "not run")
            else:
                started = time.monotonic()
                if command not in done:
                    done[command] = _run(command, item, place)
                failure = done[command]
                verdict = Verdict(item.name, failure, False) if failure else judge(item, fresh, RESULTS, full)
                say(f"  {' '.join(command)}: {time.monotonic() - started:.0f} s")
                if out is not None:
                    _copy(item, fresh, out)
            say(f"  {verdict}")
            verdicts.append(verdict)
    return verdicts


def _run(command: Command, item: Item, place: Path) -> str:
    """Run a script; one line if it failed, else nothing."""
    for name in item.kept:
        target = place / "docs" / "results" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RESULTS / name, target)
    (place / "docs" / "results" / "papers").mkdir(exist_ok=True)
    script, *arguments = command
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    finished = subprocess.run(
        [sys.executable, str(place / "simulations" / script), *arguments],
        cwd=place, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if finished.returncode == 0:
        return ""
    last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{script} failed with exit code {finished.returncode}: {last}"


def _copy(item: Item, fresh: Path, out: Path) -> None:
    for name in item.results:
        if (fresh / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(fresh / name, out / name)
