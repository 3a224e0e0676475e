"""What a natural mistake leads to: sixty of them, by who makes it.

    python simulations/mistakes.py [--tree CHECKOUT] [--only WORD ...] [--processes N] [--json FILE]

Each mistake is a function of `simulations/slips/` that builds its files in a folder of its own and says what
is run there: the command `fedmf`, or a short Python program. `--tree` runs them with another checkout of
fedmf, an older one say. What happened is judged from exit code and screen alone:

* understood: what was typed does what was meant, and a line says as what it was taken.
* refused: the exit code is not 0, and the line that says why has the words that tell the fault.
* named: it goes on, and a line with those words is on the screen before a twentieth of the budget is spent.
* unnamed: it stops, in words that do not tell the fault.
* silent: it goes on, and no such line comes in time.

A line is in time if it comes before the first line of a release or of a tenth of the rounds, and does not say
that it was seen after more than a twentieth of them. A command that releases nothing spends nothing. Where a
command asks for something else first, what it asks for is given and the mistake made again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slips.attempt import ROUNDS, Mistake
from slips.engineer import ENGINEER
from slips.owner import OWNER
from slips.researcher import RESEARCHER
from slips.stream import STREAM

HERE = Path(__file__).resolve().parents[1]
MISTAKES = (*RESEARCHER, *ENGINEER, *STREAM, *OWNER)
OUTCOMES = ("understood", "refused", "named", "unnamed", "silent")
#: The first line of a release, of a tenth of the rounds, or of what stands at the end.
SPENT = re.compile(r'\{"t": |t,(mean|first|quantity|timestamp)|round \d+/\d+|Every |Simulation only')
ROUND = re.compile(r"after round (\d+)")
LONGEST = 300.0
#: Of compiled code and designs, which all of them share.
CACHES = Path(tempfile.gettempdir()) / "fedmf-mistakes"
SHOWN = 150


@dataclass(frozen=True)
class Outcome:
    """What became of a mistake, and the line that says it."""

    mistake: Mistake
    outcome: str
    line: str

    def row(self) -> str:
        """Of the table."""
        line = " ".join(self.line.split()).replace("|", "\\|")
        shown = line if len(line) <= SHOWN else f"{line[:SHOWN]} …"
        return f"| {self.mistake.role} | {self.mistake.what} | {self.outcome} | {shown} |"


def in_time(lines: list[str]) -> list[str]:
    """The lines that come before a twentieth of the budget is spent."""
    first = next((i for i, line in enumerate(lines) if SPENT.match(line)), len(lines))
    said = (ROUND.search(line) for line in lines[:first])
    return [
        line for line, at in zip(lines, said, strict=False) if at is None or 20 * int(at.group(1)) <= ROUNDS
    ]


def judged(mistake: Mistake, code: int, lines: list[str]) -> Outcome:
    def named(some: list[str]) -> str | None:
        return next((line for line in some if all(re.search(w, line, re.I) for w in mistake.words)), None)

    if code != 0:
        line = named(lines[-1:])
        return Outcome(mistake, "unnamed" if line is None else "refused", lines[-1] if lines else "")
    if mistake.meant and (line := next((x for x in lines if re.search(mistake.meant, x)), None)):
        return Outcome(mistake, "understood", line)
    # A headline that names its unit stands at the end; the first sentence of a stream comes before it.
    line = named(in_time(lines))
    return Outcome(mistake, "silent" if line is None else "named", line or "")


def tried(mistake: Mistake, tree: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = mistake.prepare(folder)
        known = {**os.environ, "PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
        known |= {"HOME": name, "XDG_STATE_HOME": name, "XDG_CACHE_HOME": str(CACHES), "OMP_NUM_THREADS": "1"}
        outcome, answers = _once(mistake, arguments, folder, known), list(mistake.answers)
        while outcome.outcome == "unnamed" and answers:
            said, further = answers.pop(0)
            if said in outcome.line:
                arguments = [*arguments, *further]
                outcome = _once(mistake, arguments, folder, known)
    return outcome


def _once(mistake: Mistake, arguments: list[str], folder: Path, known: dict[str, str]) -> Outcome:
    command = [sys.executable, *arguments]
    where: dict[str, Any] = {"cwd": folder, "env": known, "stdout": subprocess.PIPE}
    try:
        done = subprocess.run(command, **where, stderr=subprocess.STDOUT, timeout=LONGEST, check=False)
        said, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as waiting:  # it goes on for ever
        said, code = waiting.stdout or b"", 0
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return judged(mistake, code, lines)


def table(outcomes: list[Outcome]) -> list[str]:
    counts = Counter(outcome.outcome for outcome in outcomes)
    return [
        "| who | mistake | outcome | the line |",
        "|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
        "",
        f"{len(outcomes)} mistakes: " + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES) + ".",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=HERE)
    parser.add_argument("--only", nargs="*", default=[], help="words that role or mistake must have")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    chosen = [m for m in MISTAKES if all(word in f"{m.role} {m.what}" for word in asked.only)]
    with ThreadPoolExecutor(asked.processes) as pool:
        outcomes = []
        for outcome in pool.map(lambda mistake: tried(mistake, asked.tree.resolve()), chosen):
            outcomes.append(outcome)
            print(outcome.row(), file=sys.stderr, flush=True)
    print("\n".join(table(outcomes)))
    if asked.json is not None:
        rows = [{"who": o.mistake.role, "what": o.mistake.what, "outcome": o.outcome} for o in outcomes]
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
