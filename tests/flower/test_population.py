"""The handshake: users are found on their nodes, disputed claims are not believed, restarts are followed."""

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.messages import hosted_users_reply
from fedmf.flower.population import Population

pytestmark = pytest.mark.usefixtures("own_time")

ROSTER = ["ann", "bob", "eve"]


#: The in-process grid's first node.
NODE = 2**63 + 1000


def _nodes(population: Population) -> list[int | None]:
    return population.nodes_of(np.arange(len(ROSTER)))


def _grid(claims: list[list[str]]) -> InProcessGrid:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return hosted_users_reply(message, claims[int(context.node_config["partition-id"])])

    return InProcessGrid(app, nodes=len(claims))


def test_users_are_found_on_their_nodes() -> None:
    population = Population(ROSTER)
    population.gather(_grid([["ann"], ["bob", "eve"]]), timeout=1.0)
    assert _nodes(population) == [NODE, NODE + 1, NODE + 1]
    assert population.missing == 0


def test_a_user_claimed_twice_is_never_asked() -> None:
    lines: list[str] = []
    population = Population(ROSTER, lines.append)
    population.gather(_grid([["ann", "bob"], ["bob"], ["bob", "eve"]]), timeout=1.0)
    assert _nodes(population) == [NODE, None, NODE + 2]
    assert population.disputed() == ["bob"]
    assert population.missing == 0
    assert any("'bob' is claimed by several nodes" in line for line in lines)


def test_strangers_are_ignored_and_missing_users_reported() -> None:
    lines: list[str] = []
    population = Population(ROSTER, lines.append)
    population.gather(_grid([["ann", "mallory"], []]), timeout=0.3)
    assert _nodes(population) == [NODE, None, None]
    assert population.missing == 2
    assert any("1 users that are not on the roster" in line for line in lines)
    assert any("2 of 3 users are served by no node" in line for line in lines)


def test_nobody_at_all_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no node that serves a known user answered"):
        Population(ROSTER).gather(_grid([["mallory"]]), timeout=0.3)


def test_a_node_that_fails_the_handshake_is_reported_and_the_others_serve() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            raise RuntimeError("no")
        return hosted_users_reply(message, ["ann", "bob"])

    lines: list[str] = []
    population = Population(["ann", "bob"], lines.append)
    population.gather(InProcessGrid(app, nodes=2), timeout=1.0)
    assert population.nodes_of(np.arange(2)) == [NODE + 1, NODE + 1]
    assert any("failed the handshake" in line for line in lines)


def test_a_restarted_node_gets_its_users_back_under_its_new_id() -> None:
    population = Population(ROSTER)
    population.gather(_grid([["ann", "bob"], ["eve"]]), timeout=1.0)

    class Restarted(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            return [NODE + 1, NODE + 2]  # the first is gone, the third is new

    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return hosted_users_reply(message, ["ann", "bob"])

    population.refresh(Restarted(app, nodes=3))
    assert _nodes(population) == [NODE + 2, NODE + 2, NODE + 1]
