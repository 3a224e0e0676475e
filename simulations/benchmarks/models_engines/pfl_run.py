"""A workload in `pfl`, run by a Python that has it; prints the seconds of each round as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import workload

sys.path.append(str(Path(__file__).parents[1] / "peers"))
from pfl_rounds import print_rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.WORKLOADS, required=True)
    chosen = workload.WORKLOADS[parser.parse_args().model]
    print_rounds(workload, chosen.made(), *chosen.data(), chosen.examples, chosen.batch)


if __name__ == "__main__":
    main()
