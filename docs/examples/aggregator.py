"""Private federated learning without a framework: a plain loop, and the same by callbacks of
another host.

    python docs/examples/aggregator.py [FOLDER]

Forty users own numbers x and y = 3x − 1 + noise; the model is a line. A host that has a loop of its
own gives its aggregator two calls, one before a round and one after it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmf import CyclicCohorts, PrivateAggregator, UserLevel

Model = dict[str, NDArray[np.float32]]
USERS = [f"user-{u:02d}" for u in range(40)]
START: Model = {"slope": np.zeros(1, np.float32), "offset": np.zeros(1, np.float32)}


def trained(user: str, model: Model) -> Model:
    """What twenty steps on a user's own examples change of a model: this runs where the data
    are.
    """
    rng = np.random.default_rng(USERS.index(user))
    x = rng.uniform(-1, 1, 20)
    y = 3 * x - 1 + 0.1 * rng.standard_normal(20)
    slope = float(model["slope"][0])
    offset = float(model["offset"][0])
    for _ in range(20):
        wrong = slope * x + offset - y
        slope = slope - 0.1 * float(np.mean(wrong * x))
        offset = offset - 0.1 * float(np.mean(wrong))
    return {
        "slope": np.float32([slope]) - model["slope"],
        "offset": np.float32([offset]) - model["offset"],
    }


def private(folder: Path) -> PrivateAggregator:
    return PrivateAggregator(
        # The noise seed is public, so that this example has one result; leave it out to be private.
        UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5, noise_seed=1),
        CyclicCohorts(rounds=40, users_per_round=10),
        users=USERS,
        run_dir=folder,
    )


def plain_loop(folder: Path) -> Model:
    """Every round: ask whom, train them, add, release. It continues after a kill."""
    with private(folder).begin(START) as aggregator:
        for t in range(aggregator.t, 40):
            model = aggregator.model
            for user in aggregator.cohort(t):
                aggregator.add(user, trained(user, model))
            aggregator.release()
        print(aggregator.statement().render_text())
        return aggregator.model


class Host:
    """An orchestrator of somebody else's: it owns the loop, and knows nothing of privacy."""

    def run(self, rounds: int, plugin: Plugin) -> None:
        """Carry out rounds; answers come in whatever order."""
        for number in range(rounds):
            chosen, model = plugin.before_round(number)
            for user in reversed(chosen):
                plugin.on_answer(user, trained(user, model))
            plugin.after_round(number)


class Plugin:
    """Its callbacks, as calls of an aggregator."""

    def __init__(self, aggregator: PrivateAggregator) -> None:
        self._aggregator = aggregator

    def before_round(self, number: int) -> tuple[list[str], Model]:
        return self._aggregator.cohort(number), self._aggregator.model

    def on_answer(self, user: str, update: Model) -> None:
        self._aggregator.add(user, update)

    def after_round(self, _number: int) -> None:
        self._aggregator.release()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    mine = plain_loop(folder / "loop")
    with private(folder / "host").begin(START) as aggregator:
        Host().run(40, Plugin(aggregator))
        theirs = aggregator.model
    same = all(np.array_equal(mine[name], theirs[name]) for name in START)
    print(
        f"slope {mine['slope'][0]:.2f}, offset {mine['offset'][0]:.2f};"
        f" the same by callbacks: {same}"
    )


if __name__ == "__main__":
    main()
