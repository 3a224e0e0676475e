"""Every table and figure of the five papers and of ours, by name.

    python simulations/reproduce/run.py --list
    python simulations/reproduce/run.py lambda-cgd-table4 nu-dp-ftrl [--full] [--out DIR]
    python simulations/reproduce/run.py all --quick

Each item ends with a line: how far it agrees with the paper, whether the committed result is what the
code gives now, what was not run and why. The exit code is 1 if a result is stale or a difference is not
understood.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path

from all_items import CATALOGUE
from carrying_out import reproduce

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="of the list, or all")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="full", action="store_false", help="minutes (the default)")
    size.add_argument("--full", action="store_true", help="all rows, replicas and widths: hours for some")
    parser.set_defaults(full=False)
    parser.add_argument("--out", type=Path, help="where pages and pictures go; docs/results renews them")
    parser.add_argument("--list", action="store_true", help="print the list")
    options = parser.parse_args(arguments)
    if options.list or not options.name:
        for item in CATALOGUE.values():
            print(f"{item.name:<26} {item.paper:<10} {item.item:<30} {item.setting}")
        return 0
    for name in options.name:
        if name != "all" and name not in CATALOGUE:
            near = difflib.get_close_matches(name, CATALOGUE, 1)
            hint = f" Did you mean {near[0]}?" if near else " See --list."
            print(
                f"fedmf: name (table or figure) must be in the list or all; got {name!r}.{hint}",
                file=sys.stderr,
            )
            return 2
    chosen = list(CATALOGUE) if "all" in options.name else list(dict.fromkeys(options.name))
    started = time.monotonic()
    verdicts = reproduce([CATALOGUE[name] for name in chosen], options.full, options.out, _say)
    bad = sum(not verdict.good for verdict in verdicts)
    print(f"\n{len(verdicts)} items in {time.monotonic() - started:.0f} s, {bad} stale or unexplained:")
    for verdict in verdicts:
        print(verdict)
    return 1 if bad else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read the list has seen enough
        sys.stderr.close()
