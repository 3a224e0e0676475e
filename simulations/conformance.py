"""Every path of a run and the result it has: which cells are equal, within the bound, refused, or differ.

    python simulations/conformance.py [--json] [--only WORD]

The table is that of the tests (tests/conformance): a minute of one core. Exit code 1 if a cell differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conformance.table import Cell, cells, planned  # pyright: ignore[reportMissingImports]


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a cell, on its own line")
    parser.add_argument("--only", default="", help="subjects whose name holds this")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of torch.func about a module that it cannot batch
    found: list[Cell] = []
    for subject, paths in planned():
        if options.only not in str(subject):
            continue
        row = cells(subject, paths)
        found += row
        if options.json:
            for cell in row:
                print(json.dumps(record(cell)), flush=True)
        else:
            print(f"{subject!s:42s} " + " ".join(f"{shown(cell):>9s}" for cell in row), flush=True)
    if not options.json:
        print(summary(found))
    return int(any(cell.verdict == "differs" for cell in found))


def record(cell: Cell) -> dict[str, object]:
    """A cell as JSON."""
    return {
        "subject": str(cell.subject),
        "path": str(cell.path),
        "verdict": cell.verdict,
        "ulps": cell.ulps if cell.ulps < float("inf") else None,
        "reason": cell.reason,
    }


def shown(cell: Cell) -> str:
    """A cell in a few characters."""
    return {
        "equal": "equal",
        "within the bound": f"{cell.ulps:.2g} ulp",
        "refused": "refused",
        "differs": "DIFFERS",
    }[cell.verdict]


def summary(found: list[Cell]) -> str:
    """How many there are of each verdict, the differences, and why cells are refused."""
    count = Counter(cell.verdict for cell in found)
    within = [cell.ulps for cell in found if cell.verdict == "within the bound"]
    lines = [
        "",
        f"{len(found)} cells: {count['equal']} equal, {count['within the bound']} within the bound (largest "
        f"{max(within, default=0.0):.3g} ulps), {count['refused']} refused, {count['differs']} others",
    ]
    lines += [f"  {cell.subject}, {cell.path}: {cell.reason}" for cell in found if cell.verdict == "differs"]
    reasons = Counter(cell.reason for cell in found if cell.verdict == "refused")
    lines += [f"  refused, {number}: {reason}" for reason, number in reasons.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
