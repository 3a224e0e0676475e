"""The workload in `pfl`, run by a Python that has it; prints the seconds of each round as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import workload

sys.path.append(str(Path(__file__).parents[1] / "peers"))
from pfl_rounds import print_rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    features, labels = (part.to(options.device) for part in workload.users_data())
    model = workload.build(options.model)
    print_rounds(workload, model, features, labels, workload.EXAMPLES, workload.BATCH)


if __name__ == "__main__":
    main()
