"""Who serves whom: claims, keys, virtual nodes, workers; attacks, restarts, silence."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedmf
from fedmf import Execution
from fedmf.errors import ConfigError
from fedmf.flower import ClientReportedIdentity, EnrolledIdentity, InProcessGrid
from fedmf.flower.apps import WorkerPool
from fedmf.flower.compat import NodeInfo
from fedmf.flower.handshake import served_reply
from fedmf.flower.identity import NodeIdentity, Population
from fedmf.flower.served_users import ServedUsers
from fedmf.flower.wrapper import Cohort

pytestmark = pytest.mark.usefixtures("own_time")

USER_LIST = ["ann", "bob", "eve"]
FIRST = 2**63 + 1000


def served(users: ServedUsers, grid: InProcessGrid | None = None) -> dict[str, int]:
    """Look for nodes; which node serves whom then."""
    if grid is not None:
        users.refresh(grid)
    return {
        user: node - FIRST
        for user, node in users.nodes_of(dict(enumerate(users.user_list))).items()
    }


class World(InProcessGrid):
    """Nodes 0..9, of which some live, and what each claims when it is asked.

    Args:
        claims: by node; an exception is raised.
        alive: which live.
    """

    def __init__(self, claims: dict[int, object], alive: list[int]) -> None:
        self.claims = claims
        self.alive = alive
        self.asked = list[int]()
        self.late = set[int]()
        app = ClientApp()
        self.names = dict[str, int]()

        def answer(message: Message, context: Context) -> Message:
            node = int(context.node_config["partition-id"])
            self.asked.append(node)
            said = self.claims[node]
            if isinstance(said, Exception):
                raise said
            if isinstance(said, RecordDict):
                return Message(said, reply_to=message)
            users = [said] if isinstance(said, str) else list(said)  # type: ignore[call-overload]
            return served_reply(message, users)

        app.query()(answer)
        app.train()(answer)
        super().__init__(app, nodes=10)

    def get_node_ids(self) -> list[int]:
        return [FIRST + node for node in self.alive]

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        sent = list(messages)
        pushed = super().push_messages(sent)
        nodes = [message.metadata.dst_node_id - FIRST for message in sent]
        self.names |= dict(zip(pushed, nodes, strict=True))
        return pushed

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        return super().pull_messages(
            [name for name in message_ids if self.names[name] not in self.late]
        )


Claimed = tuple[ServedUsers, list[str]]


@pytest.fixture(params=[Population, ClientReportedIdentity])
def claimed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Claimed:
    """Either identity that asks nodes, without pauses before one is asked again; lines that it
    told.
    """
    for pause in ("_AFTER_BAD", "_AFTER_NONE"):
        monkeypatch.setattr(f"fedmf.flower.identity.{pause}", 0.0)
    lines: list[str] = []
    return request.param(USER_LIST, lines.append), lines


def test_a_claim_on_a_user_that_a_living_node_serves_changes_nothing(claimed: Claimed) -> None:
    users, lines = claimed
    world = World({0: "ann", 1: "bob", 5: "ann"}, [0, 1])
    assert served(users, world) == {"ann": 0, "bob": 1}
    world.alive.append(5)
    for _ in range(3):
        assert served(users, world) == {"ann": 0, "bob": 1}
    assert any(f"claim the same user; node {FIRST} continues" in line for line in lines)
    assert not any("ann" in line for line in lines)


def test_a_user_is_served_by_who_comes_back_and_by_another_node_while_it_is_gone(
    claimed: Claimed,
) -> None:
    world = World({0: "ann", 5: "ann"}, [0])
    served(claimed[0], world)
    world.alive[:] = [0, 5]
    assert served(claimed[0], world) == {"ann": 0}
    world.alive[:] = [5]  # as a node that restarts under another id
    assert served(claimed[0], world) == {"ann": 5}
    world.alive[:] = [0, 5]
    assert served(claimed[0], world) == {"ann": 0}


def test_first_claims_at_once_are_disputed_until_one_leaves(claimed: Claimed) -> None:
    world = World({0: "ann", 1: "ann", 2: "bob"}, [0, 1, 2])
    for _ in range(3):
        assert served(claimed[0], world) == {"bob": 2}
    world.alive[:] = [1, 2]
    assert served(claimed[0], world) == {"ann": 1, "bob": 2}
    world.alive[:] = [0, 1, 2]
    assert served(claimed[0], world)["ann"] == 1


def test_a_node_that_comes_back_for_another_user_serves_that_one_alone(claimed: Claimed) -> None:
    """Its data would otherwise take part under both ids, more often than (k, b) allows."""
    world = World({0: "ann", 1: "eve"}, [0, 1])
    assert served(claimed[0], world) == {"ann": 0, "eve": 1}
    world.claims[0] = "bob"
    world.alive[:] = [1]
    served(claimed[0], world)
    world.alive[:] = [0, 1]
    assert served(claimed[0], world) == {"bob": 0, "eve": 1}


NO_IDS = [7, [1, 2], "x" * 10**6, "\x1b[2J", "mallory"]


@pytest.mark.parametrize("value", [*NO_IDS, [f"{i}" for i in range(9999)]], ids=range(6))
def test_ids_that_are_no_ids(claimed: Claimed, value: object) -> None:
    users, lines = claimed
    said = value if isinstance(value, list) else [value]
    wrong = RecordDict({"config": ConfigRecord({"fedmf.users": said})})  # type: ignore[dict-item]
    assert served(users, World({0: wrong, 1: "bob"}, [0, 1])) == {"bob": 1}
    assert all(len(line) < 300 and line.isprintable() for line in lines)


def test_a_node_that_fails_is_asked_again_a_bounded_number_of_times(claimed: Claimed) -> None:
    world = World({0: OSError("starting"), 1: "bob", 2: OSError("no")}, [0, 1, 2])
    assert served(claimed[0], world) == {"bob": 1}
    world.claims[0] = "ann"
    for _ in range(20):
        assert served(claimed[0], world) == {"ann": 0, "bob": 1}
    assert [world.asked.count(node) for node in (0, 1, 2)] == [2, 1, 6]


def test_if_every_node_fails_the_likely_cause_is_in_the_error(claimed: Claimed) -> None:
    """A deployment waits for other nodes, with a line for each; in one process there are none."""
    users, lines = claimed
    world = World({0: OSError("no"), 1: RecordDict()}, [0, 1])
    remedy = re.escape(users.remedy)  # type: ignore
    cause = rf"every node that answered \(2\) failed the handshake \(.*\): {remedy}"
    elsewhere: Any = Cohort(world, world.get_node_ids())
    with pytest.raises(RuntimeError, match=cause):
        users.gather(elsewhere, timeout=5.0)
    told = [line.partition(":")[0] for line in lines]
    assert sorted(told) == [
        f"node {FIRST} failed the handshake",
        f"node {FIRST + 1} failed the handshake",
        "waiting for users",
    ]
    lines.clear()
    other = type(users)(USER_LIST, lines.append)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=cause):
        other.gather(world, timeout=60.0)
    assert not lines


def test_a_silent_node_is_waited_for_before_the_first_round_alone(
    claimed: Claimed, own_time
) -> None:  # type: ignore[no-untyped-def]
    """All answers of that time count as given at once; a later one counts, and nobody waits for
    it.
    """
    users, lines = claimed
    world = World({0: "ann", 1: "bob", 2: "bob", 3: "eve"}, [0, 1, 2, 3])
    world.late = {0, 2}
    real = own_time.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        if own_time.now > 0.3:
            world.late = {0}

    own_time.sleep = sleep
    users.gather(world, timeout=60.0, limit=0.5)
    assert own_time.now == pytest.approx(0.5)
    assert served(users) == {"eve": 3}
    assert any("claim the same user; none is asked" in line for line in lines)
    own_time.sleep = lambda _: pytest.fail("a look for nodes must not wait")
    world.late = set()
    assert served(users, world) == {"ann": 0, "eve": 3}


def test_virtual_nodes_that_are_too_few_are_waited_for_as_long_as_a_handshake(
    own_time, caplog
) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level("INFO", "flwr")
    said = "users=4 needs as many nodes, and 2 are connected"
    elsewhere: Any = Cohort(InProcessGrid(ClientApp(), nodes=2), [1, 2])
    with pytest.raises(RuntimeError, match=f"after 5 s of waiting, {said}. Not served: 'user-0'"):
        NodeIdentity(4).gather(elsewhere, timeout=3600.0, limit=5.0)
    assert own_time.now == pytest.approx(5.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"fedmf: waiting for users: {said}"
    ]


def test_pauses_between_handshakes_double(own_time) -> None:  # type: ignore[no-untyped-def]
    world = World({0: OSError("no"), 1: "bob"}, [0, 1])
    users = Population(USER_LIST)
    times = list[int]()
    for second in range(100):
        own_time.now = float(second)
        before = world.asked.count(0)
        users.refresh(world)
        times += [second] * (world.asked.count(0) - before)
    assert times == [0, 1, 3, 7, 15, 31]


def _public(key: object) -> str:
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*openssh).decode()  # type: ignore[attr-defined]


SECRETS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(6)]
KEYS = [_public(key) for key in SECRETS]


def listed(key: int) -> bytes:
    """A key as a link lists it."""
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return SECRETS[key].public_key().public_bytes(*pem)


class Link(World):
    """Nodes with keys; ``keys`` says who is there, by node, and ``status`` what is said of it."""

    def __init__(self, keys: dict[int, bytes], claims: dict[int, object] | None = None) -> None:
        self.keys = keys
        self.status = dict[int, str]()
        super().__init__(claims or {}, [])

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=FIRST + node, public_key=key, status=self.status.get(node, "online"))
            for node, key in self.keys.items()
        ]

    def get_node_ids(self) -> list[int]:
        return [FIRST + node for node in self.keys]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """As cat *.pub makes it of keys that ssh-keygen -C wrote."""
    path = tmp_path / "enrolled"
    lines = [
        "# key of each clinic",
        "",
        *(f"{key} {user}" for key, user in zip(KEYS, USER_LIST, strict=False)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_key_says_who_a_node_is_and_strangers_serve_nobody(file: Path) -> None:
    lines: list[str] = []
    users = EnrolledIdentity(file, lines.append)
    link = Link({4: listed(2), 7: listed(0), 9: listed(1), 0: listed(5), 2: b"", 3: b"no key"})
    assert users.user_list == USER_LIST
    assert served(users, link) == {"ann": 7, "bob": 9, "eve": 4}
    assert not link.asked
    assert [line.split(" ", 2)[2] for line in lines] == 3 * [
        "has a key that is not enrolled; it gets no messages"
    ]
    link.status[7] = "offline"
    assert served(users, link) == {"bob": 9, "eve": 4}


def test_nodes_with_one_key_and_users_with_two(file: Path) -> None:
    lines: list[str] = []
    users = EnrolledIdentity(file, lines.append)
    link = Link({0: listed(0)})
    assert served(users, link) == {"ann": 0}
    link.keys[5] = listed(0)
    assert served(users, link) == {"ann": 0}
    nodes = f"nodes {FIRST}, {FIRST + 5} claim the same user"
    assert lines == [f"{nodes}; node {FIRST} continues serving it"]
    assert served(EnrolledIdentity(file), link) == {}
    del link.keys[0]
    assert served(users, link) == {"ann": 5}
    file.write_text(f"{KEYS[3]} ann\n{KEYS[0]} ann\n")
    two = EnrolledIdentity(file)
    assert served(two, Link({0: listed(0)})) == {"ann": 0}
    assert served(two, Link({0: listed(0), 1: listed(3)})) == {"ann": 0}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "at least one key; got none"),
        (f"{KEYS[0]}\n", "must name a user .ssh-keygen -C ID. in 1 to 256"),
        (f"{KEYS[0]} a\n{KEYS[1][:60]} b", "line 2 of .* must hold public keys as ssh-keygen"),
        (f"{KEYS[0]} a\n{KEYS[0]} a", "line 2 of .* each key of a user once; got 'a'"),
        (f"{KEYS[0]} a\n{KEYS[0]} b", "enrolled for one user; got one for 'a' and 'b'"),
        (
            f"{_public(ed25519.Ed25519PrivateKey.generate())} a",
            "line 1 of .* must hold public keys",
        ),
        (f"{KEYS[0]} a\x1b[2J", "1 to 256 printable characters"),
    ],
    ids=range(7),
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    text: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "enrolled"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what) as error:
        EnrolledIdentity(path)
    assert "\n" not in str(error.value)


def test_nodes_of_our_own_app_may_claim_what_their_key_is_enrolled_for() -> None:
    """Several users on a node; what a stranger claims, and what a node claims beyond, is
    nothing.
    """
    claims: dict[int, object] = {
        0: ["ann", "bob", "eve"],
        1: ["eve", "ann"],
        2: ["ann", "bob", "eve"],
    }
    der = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    keys = [SECRETS[place].public_key().public_bytes(*der) for place in (0, 1)]
    lines: list[str] = []
    population = Population(USER_LIST, lines.append, {keys[0]: ("ann", "bob"), keys[1]: ("eve",)})
    link = Link({2: listed(5), 1: listed(1), 0: listed(0)}, claims)
    population.gather(link, 1.0)
    assert served(population) == {"ann": 0, "bob": 0, "eve": 1}
    assert sorted(link.asked) == [0, 1]
    assert sum("for whom its key is not enrolled" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("late", "nodes"), [(0.0, [0, 1, 0, 1]), (99.0, [0, 1, 0, 1]), (999.0, [0] * 4)]
)
def test_workers_share_the_work_and_are_waited_for(  # type: ignore[no-untyped-def]
    own_time, late: float, nodes: list[int]
) -> None:
    """In turn, the users with the most examples first. Whom the first round asks does not depend on
    how quickly workers start, up to the time of a round.
    """
    users = np.repeat(["ann", "bob", "eve", "joe"], [5, 1, 3, 4])
    data = fedmf.Dataset.from_arrays(np.zeros((13, 1)), np.zeros(13), users, user_list="from-data")
    run = SimpleNamespace(execution=Execution(workers=2))
    session = SimpleNamespace(task=SimpleNamespace(dataset=data), run=run)
    pool = WorkerPool(session)  # type: ignore[arg-type]
    grid = World({}, [0, 1])

    def get_node_ids() -> list[int]:
        return [FIRST, FIRST + 1][: 1 + (own_time.monotonic() >= late)]

    grid.get_node_ids = get_node_ids  # type: ignore[method-assign]
    pool.gather(grid, timeout=300.0, limit=5.0)
    assert served(pool) == dict(zip(["ann", "joe", "eve", "bob"], nodes, strict=True))
