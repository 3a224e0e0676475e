"""The field's standard benchmarks at pfl's settings; what differs, and how to get the data: README.md beside.

    python simulations/field/run.py cifar10-iid --data FOLDER [--out DIR] [--device cuda]
    python simulations/field/run.py cifar10-iid --reduced                  # on data that every machine has
    python simulations/field/run.py cifar10-iid --data FOLDER --published-noise

``--reduced`` replaces data, sizes and rounds by small ones: it shows that the configuration runs, not what
the benchmark gives. ``--published-noise`` takes as much independent noise as pfl adds in its simulation and
says what that is for the users whose data are there. ``--set KEY=VALUE`` changes any other key.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as parquet

import fedmf
from fedmf.accounting import gaussian_epsilon
from fedmf.accounting.amplification import poisson_noise_multiplier
from fedmf.runs import Run, Standing, load_run, parse_assignments

FOLDER: Final = Path(__file__).parent

_DIGITS: Final = {
    "data.kind": "digits",
    "data.input-shape": "1,8,8",
    "data.users": 100,
    "cohorts.rounds": 40,
    "cohorts.size": 10,
    "privacy.epsilon": 8.0,
    "execution.evaluate-every": 20,
}
_CODE: Final = {
    "data.kind": "code-tokens",
    "data.users": 40,
    "data.most-sequences": 8,
    "data.most-test-sequences": 50,
    "cohorts.rounds": 12,
    "cohorts.size": 8,
    "privacy.epsilon": 8.0,
    "optimizer.warmup": 2,
    "execution.evaluate-every": 6,
}
#: What ``--reduced`` changes.
REDUCED: Final[dict[str, dict[str, Any]]] = {
    "cifar10-iid": _DIGITS,
    "cifar10-dirichlet": _DIGITS,
    "femnist": {
        **_DIGITS,
        "data.kind": "prototypes",
        "data.input-shape": "1,12,12",
        "data.classes": 62,
    },
    "stackoverflow-lstm": {**_CODE, "model.hidden": 32, "model.embedding": 16, "model.dense-units": 16},
    "stackoverflow-transformer": {
        **_CODE,
        "model.width": 16,
        "model.layers": 1,
        "model.heads": 2,
        "model.feed-forward": 32,
    },
}


class PublishedNoise(NamedTuple):
    """What pfl's accountant assumes of a run, and its simulation does not have.

    Args:
        population: people there would be.
        cohort: of them in a round, on average, each drawn by itself.
    """

    population: int
    cohort: int

    def multiplier(self, epsilon: float, delta: float, rounds: int) -> float:
        """σ of such a run."""
        return poisson_noise_multiplier(epsilon, delta, self.cohort / self.population, rounds)


#: ``noise_cohort_size`` and ``population`` of pfl's configurations.
PUBLISHED: Final = {
    name: PublishedNoise(1_000_000, 5000 if name.startswith("stackoverflow") else 1000) for name in REDUCED
}


def run_of(name: str, data: str = "", reduced: bool = False, keys: dict[str, Any] | None = None) -> Run:
    """The run of a benchmark.

    Args:
        name: of its configuration.
        data: folder of its data, in the form that README.md says.
        reduced: whether it is the small one.
        keys: changed after all.
    """
    changed: dict[str, Any] = dict(REDUCED[name]) if reduced else {}
    if data and not reduced:
        changed["data.path"] = data
        if name.startswith(("femnist", "stackoverflow")):
            roster = roster_of(Path(data))
            users = sum(1 for line in roster.read_text(encoding="utf-8").splitlines() if line.strip())
            changed |= {"data.roster": str(roster), "data.users": users}
    return load_run(FOLDER / f"{name}.toml", {**changed, **(keys or {})})


def roster_of(folder: Path) -> Path:
    """The list of users beside the data; made from the data where there is none.

    That is for benchmarks, whose users are published: who is in private data must be known without them.
    """
    roster = folder / "users.txt"
    if not roster.exists():
        names: dict[str, None] = {}
        for file in sorted((folder / "train").glob("*.json")):
            names |= dict.fromkeys(json.loads(file.read_bytes())["user_data"])
        for file in sorted((folder / "train").glob("*.parquet")):
            column = parquet.read_table(file, columns=["user"]).column(0)
            names |= dict.fromkeys(column.unique().to_pylist())
        roster.write_text("\n".join(names) + "\n", encoding="utf-8")
    return roster


def with_published_noise(name: str, run: Run) -> tuple[dict[str, Any], str]:
    """Keys that give a run as much independent noise as pfl's, and what that means in words.

    pfl adds noise of deviation σ·ζ·m/M to the sum over a cohort of m, σ being that of M of a population, so
    that the mean has σ·ζ/M. For the users whose data are there, each in at most k rounds, a run of so much
    noise is one Gaussian release with μ = √k·M/(σ·m).
    """
    full = load_run(FOLDER / f"{name}.toml")
    published, asked = PUBLISHED[name], full.privacy.requested_epsilon
    assert asked is not None
    sigma = published.multiplier(asked, full.privacy.delta, full.cohorts.rounds)
    most = run.participation.max_participations
    own = sigma * run.cohorts.size / published.cohort / math.sqrt(most)
    epsilon = gaussian_epsilon(own, run.privacy.delta)
    keys = {"privacy.epsilon": epsilon, "mechanism.kind": "identity"}
    said = (
        f"independent noise of {sigma / published.cohort:.3g} clip norms on a mean: epsilon {asked:g} for "
        f"{published.population:,} people of whom {published.cohort:,} are drawn in each of "
        f"{full.cohorts.rounds:,} rounds (sigma {sigma:.4g}); for the {run.task_source.users:,} users here, "
        f"each in up to {most} of {run.cohorts.rounds:,} rounds, epsilon {epsilon:,.0f}"
    )
    return keys, said


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("config", choices=sorted(REDUCED))
    parser.add_argument("--data", default="", help="folder of the data")
    parser.add_argument("--reduced", action="store_true", help="small, on data that every machine has")
    parser.add_argument("--published-noise", action="store_true", help="as much noise as pfl simulates")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="run directory; a temporary one if left out")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    keys = parse_assignments(given.set)
    run = run_of(given.config, given.data, given.reduced, keys)
    if given.published_noise:
        noise, said = with_published_noise(given.config, run)
        print(said, flush=True)
        run = run_of(given.config, given.data, given.reduced, {**keys, **noise})

    def show(standing: Standing) -> None:
        if standing.row is not None:
            print("  ".join(f"{name} {value:.4g}" for name, value in standing.row.items()), flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        result = fedmf.simulate(run, given.out or Path(temporary) / "run", given.device, [show])
    statement = result.statement.to_dict()
    print(f"epsilon {statement.get('epsilon_planned')} at delta {run.privacy.delta:g}")


if __name__ == "__main__":
    main()
