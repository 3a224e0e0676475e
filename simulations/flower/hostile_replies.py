"""Replies mutated from valid ones, in the message modes of our strategy and around a strategy of Flower's.

    python simulations/flower/hostile_replies.py [--replies 20000] [--modes ...] [--seed 0] [--json]

Modes are replies with rows of several users (per-user) or of one (one-user), sums (slice), and updates
around a strategy of Flower's (wrapper). Every reply goes through what a server app of a deployment runs: it
lies as objects on a link, is pulled, unpacked, checked and summed. Half of the nodes are honest. In each
round the exact integer sum is compared with that of the honest users' updates alone. A row counts, for a
mode and a mutation, how many replies there were, how many were refused, how many were taken although they
are not what was sent, and how many honest ones were lost; of a reply with one bad row, the others' rows are
honest. Exit code 1 if any was taken or lost, or a run ended.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

from hostile.judge import Judge
from hostile.replies import Draw
from hostile.runs import FORMS, own_strategy, wrapped_strategy
from rich.console import Console
from rich.table import Table

MODES = (*FORMS, "wrapper")


def mutate(mode: str, replies: int, seed: int, rounds: int = 40) -> Judge:
    """So many mutated replies of a mode."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    judge, draw = Judge(mode), Draw(seed)
    one = wrapped_strategy if mode == "wrapper" else own_strategy
    while judge.hostile < replies and not judge.ended:
        with tempfile.TemporaryDirectory() as folder:
            try:
                one(judge, Path(folder) / "run", rounds, draw)
            except Exception as error:
                judge.ended += 1
                print(f"{mode}: run ended: {type(error).__name__}: {error}", file=sys.stderr)
    return judge


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replies", type=int, default=20_000, help="mutated replies of each mode, at least")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    judges = [mutate(mode, given.replies, given.seed) for mode in given.modes]
    if given.json:
        print(json.dumps([row for judge in judges for row in judge.rows()]))
    else:
        table = Table("mode", "mutation", "replies", "refused", "taken", "lost")
        for judge in judges:
            for row in judge.rows():
                table.add_row(*(f"{value:,}" if isinstance(value, int) else value for value in row.values()))
        Console().print(table)
        for judge in judges:
            Console().print(
                f"{judge.mode}: {judge.hostile:,} mutated replies, {judge.total('taken')} taken, "
                f"{judge.total('lost')} honest lost, {judge.wrong_sums} wrong sums, {judge.ended} ended runs"
            )
    return int(any(judge.bad for judge in judges))


if __name__ == "__main__":
    raise SystemExit(main())
