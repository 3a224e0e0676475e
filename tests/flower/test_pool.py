"""Workers of a simulation: any of them trains any user, work is spread evenly, the roster is compared."""

import itertools

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.messages import roster_reply
from fedmf.flower.simulation import WorkerPool, longest_first
from fedmf.runs import roster_digest

pytestmark = pytest.mark.usefixtures("own_time")

ROSTER = ["ann", "bob", "eve", "joe"]
SIZES = np.array([5, 1, 3, 4])
NODE = 2**63 + 1000


def _grid(rosters: list[list[str] | None]) -> InProcessGrid:
    """A worker for each roster it was built with; None fails."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        roster = rosters[int(context.node_config["partition-id"])]
        if roster is None:
            raise RuntimeError("no")
        return roster_reply(message, roster)

    return InProcessGrid(app, nodes=len(rosters))


def _pool(lines: list[str] | None = None) -> WorkerPool:
    return WorkerPool(ROSTER, lambda users: SIZES[users], [].append if lines is None else lines.append)


def test_the_largest_users_go_first_to_the_worker_with_the_least_work() -> None:
    pool = _pool()
    pool.gather(_grid([ROSTER, ROSTER]), timeout=1.0)
    # 5 to the first, 4 and 3 to the second, 1 to the first: 6 and 7.
    assert pool.nodes_of(np.arange(4)) == [NODE, NODE, NODE + 1, NODE + 1]
    assert pool.nodes_of(np.array([1])) == [NODE]
    assert pool.missing == 0


def test_workers_built_for_other_users_are_not_asked() -> None:
    lines: list[str] = []
    pool = _pool(lines)
    pool.gather(_grid([["ann", "bob", "joe", "eve"], ROSTER, None]), timeout=1.0)
    assert pool.nodes_of(np.arange(4)) == [NODE + 1] * 4
    assert any(f"worker {NODE} was built for other users" in line for line in lines)
    assert any(f"worker {NODE + 2} failed the handshake" in line for line in lines)


@pytest.mark.parametrize(
    ("late", "nodes"),
    [(3.0, [NODE, NODE, NODE + 1, NODE + 1]), (99.0, [NODE, NODE, NODE + 1, NODE + 1]), (999.0, [NODE] * 4)],
)
def test_workers_that_are_named_late_are_waited_for(own_time, late: float, nodes: list[int]) -> None:
    """Whom the first round asks does not depend on how quickly workers start, up to the time of a round."""
    grid = _grid([ROSTER, ROSTER])
    every = grid.get_node_ids
    grid.get_node_ids = lambda: sorted(every())[: 1 + (own_time.monotonic() >= late)]
    pool = WorkerPool(ROSTER, lambda users: SIZES[users], workers=2)
    pool.gather(grid, timeout=300.0, limit=5.0)
    assert pool.nodes_of(np.arange(4)) == nodes
    assert own_time.monotonic() <= min(late, 300.0) + 1.0


def test_no_fit_worker_is_an_error() -> None:
    pool = _pool()
    with pytest.raises(RuntimeError, match="no node that serves a known user"):
        pool.gather(_grid([["mallory"]]), timeout=0.3)
    assert pool.nodes_of(np.arange(2)) == [None, None]


def test_digests_tell_order_and_borders_apart() -> None:
    rosters = (["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"], ["ab", "c", ""])
    assert len({roster_digest(roster) for roster in rosters}) == len(rosters)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_longest_first_stays_within_grahams_bound(workers: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        sizes = rng.integers(1, 30, size=7)
        spread = longest_first(sizes, workers)
        busiest = np.bincount(spread, weights=sizes, minlength=workers).max()
        best = min(
            np.bincount(choice, weights=sizes, minlength=workers).max()
            for choice in itertools.product(range(workers), repeat=sizes.size)
        )
        assert busiest <= (4 / 3 - 1 / (3 * workers)) * best
        # Spreading in the order given would not do, at least once.
    assert longest_first(np.array([1, 1, 2]), 2).tolist() == [1, 1, 0]
