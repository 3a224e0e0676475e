"""Private adaptation of a public model: all parameters, or low-rank adapters (LoRA) alone.

    python simulations/language/lora.py --processes 2   # under ten minutes on one core
    python simulations/language/lora.py --reduced --out DIR   # seconds; its numbers mean nothing

A transformer is trained without privacy on public modules of Python's standard library and then adapted
privately on other modules, each a user. Each seed deals the modules anew, so it has a public model of its
own; the server learning rate of each row is chosen on a seed that is not reported. A stopped comparison goes
on where it ended. Noise comes from public seeds: such runs protect nobody. It needs fedmf[lm].
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

import fedmf
from fedmf.data import CodeTokens
from fedmf.models import Transformer, with_lora
from fedmf.optim import Sgd
from fedmf.runs import FunctionTask, NextToken
from fedmf.runs.tables.configuration import run_of
from fedmf.sweeps import Sweep, SweepResult
from fedmf.training import Task, next_token

#: Rank of the adapters by row, 0 for all parameters; and the users' learning rate, found beforehand on seed
#: 200: an adapter's changes are smaller, so that at a rate of 0.3 noise for the same clip norm drowns them.
ROWS: Final = {"full": (0, 0.3), "LoRA, rank 4": (4, 3.0), "LoRA, rank 8": (8, 3.0)}
EPSILONS: Final = (2.0, 8.0)
RATES: Final = (0.03125, 0.125, 0.5)
TUNING_SEED: Final = 100
TIMED_ROUNDS: Final = 12


@dataclass(frozen=True)
class Size:
    """How large the comparison is.

    Args:
        width: of the transformer.
        feed_forward: its dense units.
        length: tokens of a sequence.
        users: in private adaptation.
        cohort: users of a round.
        rounds: of adaptation.
        public_rounds: of training on the public modules, a third of which is in a round.
        public_sequences: of each public module.
        sequences: of each user.
        test_sequences: held out.
    """

    width: int = 64
    feed_forward: int = 128
    length: int = 32
    users: int = 360
    cohort: int = 60
    rounds: int = 30
    public_rounds: int = 18
    public_sequences: int = 32
    sequences: int = 8
    test_sequences: int = 400

    def data(self, part: str, seed: int) -> CodeTokens:
        """Modules of one part; vocabulary and held-out part are the same for both."""
        public = part == "public"
        return CodeTokens(
            seed=seed,
            users=84 if public else self.users,
            part="public" if public else "users",
            length=self.length,
            public_fraction=0.15,
            test_fraction=0.15,
            most_sequences=self.public_sequences if public else self.sequences,
            most_test_sequences=self.test_sequences,
        )

    def model(self, seed: int) -> Transformer:
        """Two blocks of four heads."""
        return Transformer(seed=seed, width=self.width, layers=2, heads=4, feed_forward=self.feed_forward)


FULL: Final = Size()
REDUCED: Final = Size(
    *(8, 8, 8),
    users=12,
    cohort=4,
    rounds=3,
    public_rounds=3,
    public_sequences=2,
    sequences=2,
    test_sequences=8,
)


def train_public(size: Size, seed: int, path: Path) -> None:
    """The public model of a seed, by federated averaging without privacy; it goes on if it was stopped."""
    run = fedmf.Run(
        task=NextToken(size.data("public", seed), size.model(seed)),
        cohorts=fedmf.CyclicCohorts(rounds=size.public_rounds, size=28, seed=seed),
        privacy=fedmf.NoPrivacy(),
        optimizer=Sgd(learning_rate=1.0, momentum=0.9),
        local=fedmf.LocalSGD(batch_size=4, learning_rate=0.3, seed=seed),
    )
    fedmf.simulate(run, path)


def adapted(value: FunctionTask) -> Task:
    """The task of a run: the seed's users, and its public model with adapters of a rank."""
    options = json.loads(value.options)
    size, seed = Size(**options["size"]), value.task_seed
    dataset = size.data("users", seed).load()
    module = size.model(seed).build((size.length,), dataset.vocabulary, dataset.vocabulary)
    module.load_state_dict(fedmf.load_model(Path(options["public"]) / str(seed)))
    if rank := options["rank"]:
        module = with_lora(module, rank=rank, alpha=2.0 * rank, seed=seed)
    return next_token(dataset, module, dataset.vocabulary)


def comparison(size: Size, seeds: int, public: Path) -> Sweep:
    """All private runs as one sweep."""
    variants: dict[str, dict[str, Any]] = {
        name: {
            "task.options": json.dumps({"rank": rank, "public": str(public), "size": asdict(size)}),
            "local.learning-rate": rate,
        }
        for name, (rank, rate) in ROWS.items()
    }
    return Sweep(
        {
            "task.kind": "function",
            "task.function": "lora:adapted",
            "task.users": size.users,
            "cohorts.kind": "cyclic",
            "cohorts.rounds": size.rounds,
            "cohorts.size": size.cohort,
            "privacy.kind": "user-level",
            "privacy.delta": 1e-4,
            "privacy.clip-norm": 0.5,
            "mechanism.kind": "banded-toeplitz",
            "optimizer.kind": "sgd",
            "optimizer.momentum": 0.9,
            "local.batch-size": 4,
            "execution.evaluate-every": size.rounds,
        },
        seeds=range(seeds),
        variants=variants,
        grid={"privacy.epsilon": EPSILONS},
        tuned={"optimizer.learning-rate": RATES},
        tuning_seeds=[TUNING_SEED],
        metric="perplexity",
    )


def seconds_of_rounds(keys: dict[str, Any]) -> list[float]:
    """Of a run's rounds after the first and without the last evaluation, durable, from one to the next."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        fedmf.simulate(
            run_of(keys),
            Path(folder) / "run",
            observers=[lambda at: at.opening or ends.append(time.perf_counter())],
        )
    return [later - earlier for earlier, later in pairwise(ends[:-1])]


def timed(result: SweepResult) -> dict[str, float]:
    """Median seconds of a round of each row; rows are timed in turn, twice."""
    seconds: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(2):
        for found in result.cells[: len(ROWS)]:
            keys = result.sweep.keys_of(found.cell, result.sweep.candidates[0], 0)
            keys |= {"cohorts.rounds": min(TIMED_ROUNDS, keys["cohorts.rounds"])}
            seconds[found.cell.variant] += seconds_of_rounds(
                keys | {"execution.evaluate-every": TIMED_ROUNDS}
            )
    return {name: statistics.median(values) for name, values in seconds.items()}


def perplexity_before(result: SweepResult) -> dict[int, float]:
    """That of each reported seed's public model on its held-out modules."""
    found, values = result.cells[0], {}
    for seed, digest in found.runs.items():
        kept = json.loads((result.path / "finished" / f"{digest}.json").read_text())
        values[seed] = float(kept["metrics"]["0"]["perplexity"])
    return values


def dimensions(result: SweepResult) -> dict[str, int]:
    """d of each row."""
    texts = {name: keys["task.options"] for name, keys in result.sweep.variants.items()}
    tasks = {name: adapted(FunctionTask("lora:adapted", options=text)) for name, text in texts.items()}
    return {name: task.model.dimension for name, task in tasks.items()}


def markdown(result: SweepResult, dimension: dict[str, int], seconds: dict[str, float]) -> str:
    """A row for each ε and way of adapting."""
    before = _mean_and_range([*perplexity_before(result).values()])
    lines = [
        f"Before adaptation: held-out perplexity {before}.\n",
        "| ε | trained | d | server rate | held-out perplexity | − full, paired, 95 % | ms a round |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in result.cells:
        name, against = found.cell.variant, result.against_baseline(found)
        rate = (found.tuned or {}).get("optimizer.learning-rate", "none")
        ends = "" if against is None else f"{against.estimate:+.2f} [{against.low:+.2f}, {against.high:+.2f}]"
        lines.append(
            f"| {found.cell.point[0][1]:g} | {name} | {dimension[name]:,} | {rate:g} | "
            f"{_mean_and_range([*found.values.values()])} | {ends} | {1000 * seconds[name]:.0f} |"
        )
    return "\n".join(lines)


def _mean_and_range(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    return f"{statistics.mean(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the public models, adapt them, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="that are reported")
    parser.add_argument("--reduced", action="store_true", help="everything tiny, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("runs/lora"), help="directory of all runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    size, out = REDUCED if options.reduced else FULL, options.out.resolve()
    public = out / "public"
    public.mkdir(parents=True, exist_ok=True)
    for seed in (TUNING_SEED, *range(options.seeds)):
        train_public(size, seed, public / str(seed))
    sweep = comparison(size, options.seeds, public)
    result = fedmf.carry_out(sweep, out / "sweep", options.processes)
    for line in (*result.failures, *result.warnings):
        print(line)
    print(markdown(result, dimensions(result), timed(result)))


if __name__ == "__main__":
    main()
