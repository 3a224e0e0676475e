"""Make the machine code that most tests and the programs they start need, unless it is kept already.

In a fresh checkout every process would make it for itself: half a minute each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.small_runs import run_small, small_run

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_small(Path(folder) / "run", small_run(mechanism="bisr", bands=4, rounds=4))
