"""Server optimizers compared at equal privacy, in the spirit of Fig. 6 and Table 3 of the JME paper.

    python simulations/optimizers/training.py --problem digits           # an hour on one core for both
    python simulations/optimizers/training.py --problem "scaled blocks"
    python simulations/optimizers/training.py --tables                   # tables and pictures from the cells
    python simulations/optimizers/training.py --problem digits --quick --cells /tmp/quick.jsonl

Every finished run is a line of the cells file, so that a stopped comparison goes on where it ended. The
learning rate, and ρ of the adaptive rules, are chosen for each method and ε on seeds that are not used for
the table. In practice such a choice on private data costs privacy that no statement covers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from harness import PROBLEMS, run
from methods import BASELINE, METHODS
from problems import Problem

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
EPSILONS = (8.0, 2.0)
#: Learning rates are searched on this grid, outwards from START until the best one has worse neighbours.
GRID = tuple(10.0 ** (i / 2) for i in range(-8, 5))
START = {"digits": {"adaptive": 0.01, "plain": 0.1}, "scaled blocks": {"adaptive": 0.1, "plain": 1.0}}
TUNING_SEEDS = {"digits": (1000,), "scaled blocks": (1000,)}

Key = tuple[str, str, float, float, float, int]


class Cells:
    """Finished runs by (problem, method, ε, rate, ρ, seed), one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, value = json.loads(line)
                self.found[tuple(key)] = value

    def accuracy(self, key: Key, problem: Problem) -> float:
        """The accuracy of a run, made now if it is not there."""
        if key not in self.found:
            _, name, epsilon, rate, damping, seed = key
            every = max(1, problem.rounds // 20)
            value = run(problem, METHODS[name], epsilon, rate, damping, seed, every)
            value["curve"] = [round(point, 1) for point in value["curve"]]
            self.found[key] = value
            with self.path.open("a") as file:
                file.write(json.dumps([key, value]) + "\n")
            print(
                name, epsilon, f"{rate:.3g}", damping, seed, value["accuracy"], value["seconds"], flush=True
            )
        return self.found[key]["accuracy"]


class Comparison:
    """One problem, all methods and budgets."""

    def __init__(self, name: str, cells: Cells, seeds: int, quick: bool, methods: list[str]) -> None:
        self.name, self.cells, self.seeds, self.quick = name, cells, seeds, quick
        self.methods = methods or list(METHODS)
        self._problem: tuple[int, Problem] | None = None

    def problem(self, seed: int) -> Problem:
        """Data of a seed, the last one kept."""
        if self._problem is None or self._problem[0] != seed:
            made = PROBLEMS[self.name](seed)
            if self.quick:
                made.rounds = made.rounds // 6
            self._problem = (seed, made)
        return self._problem[1]

    def accuracy(self, method: str, epsilon: float, rate: float, damping: float, seed: int) -> float:
        """Of one run."""
        key = (self.name, method, epsilon, rate, damping, seed)
        return self.cells.accuracy(key, self.problem(seed))

    def tuned(self, method: str, epsilon: float) -> tuple[float, float]:
        """Learning rate and ρ with the best mean accuracy on the tuning seeds."""
        kind = "plain" if "momentum" in method or method == "SGD" else "adaptive"
        best = (-1.0, START[self.name][kind], 0.0)
        for damping in METHODS[method].dampings:
            best = max(best, self._climbed(method, epsilon, damping, best[1]))
        return best[1:]

    def _climbed(
        self, method: str, epsilon: float, damping: float, start: float
    ) -> tuple[float, float, float]:
        at = min(range(len(GRID)), key=lambda i: abs(GRID[i] - start))
        scores: dict[int, float] = {}
        seeds = TUNING_SEEDS[self.name][: 1 if self.quick else None]

        def score(i: int) -> float:
            if i not in scores:
                made = [self.accuracy(method, epsilon, GRID[i], damping, seed) for seed in seeds]
                scores[i] = sum(made) / len(made)
            return scores[i]

        while True:
            near = [i for i in (at - 1, at, at + 1) if 0 <= i < len(GRID)]
            best = max(near, key=lambda i: (score(i), i == at))
            if best == at or self.quick:
                return score(best), GRID[best], damping
            at = best

    def run(self) -> None:
        """Everything of this problem; private budgets play no part without noise."""
        chosen = {}
        for epsilon in EPSILONS:
            for method in METHODS:
                if method in self.methods and (METHODS[method].private or epsilon == EPSILONS[0]):
                    chosen[method, epsilon] = self.tuned(method, epsilon)
        for seed in range(self.seeds):
            for (method, epsilon), (rate, damping) in chosen.items():
                self.accuracy(method, epsilon, rate, damping, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", choices=list(PROBLEMS), action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="a sixth of the rounds, three rates, one tuning seed"
    )
    parser.add_argument("--cells", type=Path, default=RESULTS / "optimizers.jsonl")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--method", choices=list(METHODS), action="append", default=[], help="default: all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(options.cells)
    for name in options.problem:
        Comparison(name, cells, 2 if options.quick else options.seeds, options.quick, options.method).run()
    if options.tables:
        from tables import write_tables

        write_tables(cells.found, BASELINE, EPSILONS, options.output)


if __name__ == "__main__":
    main()
