"""Attacks on who serves whom, on both kinds of identity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmf.flower import UsersSayWho
from fedmf.flower.boundary import Handshakes
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.messages import hosted_users_reply
from fedmf.flower.population import Population

pytestmark = pytest.mark.usefixtures("own_time")

ROSTER = ["ann", "bob", "eve"]
FIRST = 2**63 + 1000


class World(InProcessGrid):
    """Nodes 0..9, of which some live, and what each claims when it is asked.

    Args:
        claims: by node; an exception is raised.
        alive: which live.
    """

    def __init__(self, claims: dict[int, object], alive: list[int]) -> None:
        self.claims, self.alive, self.asked = claims, alive, list[int]()
        app = ClientApp()

        def answer(message: Message, context: Context) -> Message:
            node = int(context.node_config["partition-id"])
            self.asked.append(node)
            said = self.claims[node]
            if isinstance(said, Exception):
                raise said
            if message.metadata.message_type == "query":
                if isinstance(said, RecordDict):
                    return Message(said, reply_to=message)
                return hosted_users_reply(message, [said] if isinstance(said, str) else list(said))  # type: ignore[call-overload]
            if isinstance(said, RecordDict):
                return Message(said, reply_to=message)
            said = said if isinstance(said, str) else next(iter(said))  # type: ignore[call-overload]
            return Message(RecordDict({"a": ConfigRecord({"fedmf.user": said})}), reply_to=message)

        app.query()(answer)
        app.train()(answer)
        super().__init__(app, nodes=10)

    def get_node_ids(self) -> list[int]:
        return [FIRST + node for node in self.alive]


class Identity:
    """Either identity, asked the same way."""

    def __init__(self, kind: str) -> None:
        self.lines: list[str] = []
        self.inner = {"population": Population, "say-who": UsersSayWho}[kind](ROSTER, self.lines.append)
        # No pause before a node is asked again.
        self.inner._handshakes._pause = self.inner._handshakes._patience = 0.0

    def meet(self, world: World) -> dict[str, int | None]:
        """Shake hands; which node serves whom then."""
        self.inner.refresh(world)
        return self.served()

    def served(self) -> dict[str, int | None]:
        nodes = self.inner.nodes_of(np.arange(len(ROSTER)))
        return {
            user: None if node is None else node - FIRST for user, node in zip(ROSTER, nodes, strict=True)
        }


@pytest.fixture(params=["population", "say-who"])
def identity(request: pytest.FixtureRequest) -> Identity:
    return Identity(request.param)


NOBODY = dict.fromkeys(ROSTER)


def test_1_a_claim_on_a_user_that_a_living_node_serves_changes_nothing(identity: Identity) -> None:
    world = World({0: "ann", 1: "bob", 5: "ann"}, [0, 1])
    assert identity.meet(world) == {**NOBODY, "ann": 0, "bob": 1}
    world.alive.append(5)
    for _ in range(5):
        assert identity.meet(world) == {**NOBODY, "ann": 0, "bob": 1}
    assert any("'ann' is claimed by several nodes" in line for line in identity.lines)


def test_2_a_node_that_comes_back_under_its_own_id_gets_its_user_back(
    identity: Identity,
) -> None:
    world = World({0: "ann", 5: "ann"}, [0])
    identity.meet(world)
    world.alive[:] = [5]
    assert identity.meet(world)["ann"] == 5
    world.alive[:] = [0, 5]
    assert identity.meet(world)["ann"] == 0


def test_3_a_node_that_restarts_gets_its_user_back_once_its_old_id_is_gone(identity: Identity) -> None:
    world = World({0: "ann", 1: "ann"}, [0])
    identity.meet(world)
    world.alive[:] = [0, 1]
    assert identity.meet(world)["ann"] == 0
    world.alive[:] = [1]
    assert identity.meet(world)["ann"] == 1


def test_4_a_name_said_twice_counts_once(identity: Identity) -> None:
    twice = RecordDict(
        {"config": ConfigRecord({"users": ["ann", "ann"]}), "a": ConfigRecord({"fedmf.user": "ann"})}
    )
    assert identity.meet(World({0: twice, 1: "bob"}, [0, 1])) == {**NOBODY, "ann": 0, "bob": 1}


def test_5_users_that_are_not_registered_are_nobodys(identity: Identity) -> None:
    assert identity.meet(World({0: "mallory", 1: "bob"}, [0, 1])) == {**NOBODY, "bob": 1}
    assert any("not on the roster" in line for line in identity.lines)


def test_6_after_a_node_left_its_user_goes_to_the_only_claim(identity: Identity) -> None:
    world = World({0: "ann", 5: "ann", 6: "ann"}, [0])
    identity.meet(world)
    world.alive[:] = []
    assert identity.meet(world)["ann"] is None
    world.alive[:] = [5, 6]
    assert identity.meet(world)["ann"] is None
    world.alive[:] = [6]
    assert identity.meet(world)["ann"] == 6


def test_7_flapping_gains_nothing_and_costs_little(identity: Identity) -> None:
    world = World({0: "ann", **dict.fromkeys(range(1, 10), "ann")}, [0])
    identity.meet(world)
    for turn in range(30):
        world.alive[:] = [0, 1 + turn % 9]
        assert identity.meet(world)["ann"] == 0
    assert world.asked.count(0) == 1
    assert sum(map(len, identity.inner._claims._waiting.values())) == 1  # only of those that live


def test_8_many_claims_in_one_reply(identity: Identity) -> None:
    many = ["ann", "bob", *(f"stranger {i}" for i in range(10**4))]
    said = RecordDict(
        {"config": ConfigRecord({"users": many})} | {u: ConfigRecord({"fedmf.user": u}) for u in many[:50]}
    )
    assert identity.meet(World({0: said, 1: "bob"}, [0, 1])) == {**NOBODY, "bob": 1}
    assert sum(len(line) for line in identity.lines) < 2000


@pytest.mark.parametrize("value", [7, 1.5, [1, 2], b"ann", "x" * 10**6, "ann\n", "\x1b[2J", ""])
def test_9_ids_that_are_no_ids(identity: Identity, value: object) -> None:
    users = value if isinstance(value, list) else [value]
    said = RecordDict({"config": ConfigRecord({"users": users}), "a": ConfigRecord({"fedmf.user": value})})  # type: ignore[dict-item]
    assert identity.meet(World({0: said, 1: "bob"}, [0, 1])) == {**NOBODY, "bob": 1}
    assert all(len(line) < 300 and line.isprintable() for line in identity.lines)


def test_10_two_first_claims_at_once_are_disputed_until_one_leaves(identity: Identity) -> None:
    world = World({0: "ann", 1: "ann", 2: "bob"}, [0, 1, 2])
    for _ in range(3):
        assert identity.meet(world) == {**NOBODY, "bob": 2}
    world.alive[:] = [1, 2]
    assert identity.meet(world) == {**NOBODY, "ann": 1, "bob": 2}
    world.alive[:] = [0, 1, 2]
    assert identity.meet(world)["ann"] == 1


def test_a_node_that_fails_its_first_handshake_is_asked_again(identity: Identity) -> None:
    world = World({0: OSError("starting"), 1: "bob"}, [0, 1])
    assert identity.meet(world) == {**NOBODY, "bob": 1}
    world.claims[0] = "ann"
    assert identity.meet(world) == {**NOBODY, "ann": 0, "bob": 1}
    identity.meet(world)
    assert (world.asked.count(0), world.asked.count(1)) == (2, 1)


def test_a_node_that_always_fails_is_asked_a_bounded_number_of_times(identity: Identity) -> None:
    world = World({0: OSError("no"), 1: "bob"}, [0, 1])
    for _ in range(20):
        identity.meet(world)
    assert world.asked.count(0) == 6


def _is_first(message: Message) -> bool:
    return message.metadata.dst_node_id == FIRST


class Late(World):
    """Has the answers of node 0 only after some looks for nodes."""

    looks, needed = 0, 10

    def get_node_ids(self) -> list[int]:
        self.looks += 1
        return super().get_node_ids()

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        sent = list(messages)
        pushed = super().push_messages(sent)
        of_first = {m for m, message in zip(pushed, sent, strict=True) if _is_first(message)}
        self.of_first = getattr(self, "of_first", set()) | of_first
        return pushed

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        late = set() if self.looks > self.needed else self.of_first
        return super().pull_messages([m for m in message_ids if m not in late])


def test_a_late_answer_counts_and_nobody_waits_for_it(
    identity: Identity, monkeypatch: pytest.MonkeyPatch, own_time
) -> None:
    world = Late({0: "ann", 1: "bob"}, [0, 1])
    identity.inner._handshakes._pause = identity.inner._handshakes._patience = 1000.0
    monkeypatch.setattr(own_time, "sleep", lambda _: pytest.fail("a look for nodes must not wait"))
    for _ in range(10):
        assert identity.meet(world) == {**NOBODY, "bob": 1}
    assert identity.meet(world) == {**NOBODY, "ann": 0, "bob": 1}
    assert world.asked.count(0) == 1


def test_before_the_first_round_a_silent_node_is_waited_for_as_long_as_the_limit_says(
    identity: Identity, own_time
) -> None:
    world = Late({0: "ann", 1: "bob", 2: "eve"}, [0, 1, 2])
    world.needed = 10**6
    identity.inner.gather(world, timeout=60.0, limit=0.6)
    assert own_time.now == pytest.approx(0.6)
    assert identity.served() == {**NOBODY, "bob": 1, "eve": 2}
    world.needed = 0
    assert identity.meet(world) == {"ann": 0, "bob": 1, "eve": 2}


def test_nobody_gets_a_user_before_the_first_round_by_answering_sooner(identity: Identity) -> None:
    world = Late({0: "ann", 1: "ann", 2: "bob"}, [0, 1, 2])
    world.needed = 3
    identity.inner.gather(world, timeout=2.0, limit=1.5)
    assert identity.served() == {**NOBODY, "bob": 2}
    assert any("'ann' is claimed by several nodes" in line for line in identity.lines)


def test_pauses_between_handshakes_double(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedmf.flower.boundary.claims.time.monotonic", lambda: now[0])
    world = World({0: OSError("no")}, [0])
    question: Callable[[int], Message] = lambda node: Message(RecordDict(), node, "query")  # noqa: E731
    handshakes, times = Handshakes(question), []
    for second in range(100):
        now[0] = float(second)
        before = len(world.asked)
        list(handshakes.answers(world, world.get_node_ids()))
        times += [second] * (len(world.asked) - before)
    assert times == [0, 1, 3, 7, 15, 31]
