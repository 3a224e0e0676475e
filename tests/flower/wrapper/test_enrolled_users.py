"""An enrolment file: a node's key says who it is; attacks on that, restarts, resuming."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, EnrolledUsers
from fedmf.flower.boundary import Enrolment
from fedmf.flower.compat import NodeInfo
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.messages import hosted_users_reply
from fedmf.flower.population import Population

pytestmark = pytest.mark.usefixtures("own_time")

FIRST = 2**63 + 1000
ROSTER = ["clinic b", "clinic-a", "clinic-c"]


def _public(key: object) -> str:
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*openssh).decode()  # type: ignore[attr-defined]


SECRETS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(6)]
KEYS = [_public(key) for key in SECRETS]


def listed(key: int) -> bytes:
    """A key as a link lists it."""
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return SECRETS[key].public_key().public_bytes(*pem)


class Link(InProcessGrid):
    """Nodes with keys; ``keys`` says who is there, by node, and ``asked`` who was asked."""

    def __init__(self, keys: dict[int, bytes], app: ClientApp | None = None) -> None:
        self.keys, self.status, self.asked = keys, dict[int, str](), list[int]()
        super().__init__(app or _adding(), nodes=10)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=FIRST + node, public_key=key, status=self.status.get(node, "online"))
            for node, key in self.keys.items()
        ]

    def get_node_ids(self) -> list[int]:
        return [FIRST + node for node in self.keys]

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        sent = list(messages)
        self.asked += [message.metadata.dst_node_id - FIRST for message in sent]
        return super().push_messages(sent)


def _adding(amount: Callable[[int], float] = float) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        value = next(iter(message.content.array_records.values()))["w"].numpy()
        arrays = ArrayRecord(
            {"w": Array(value + np.float32(amount(int(context.node_config["partition-id"]))))}
        )
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    return app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """As cat *.pub makes it of keys that ssh-keygen -C wrote."""
    path = tmp_path / "enrolled"
    lines = ["# key of each clinic", "", *(f"{key} {user}" for key, user in zip(KEYS, ROSTER, strict=False))]
    path.write_text("\n".join(lines) + "\n")
    return path


def served(users: EnrolledUsers, link: Link) -> list[int | None]:
    users.refresh(link)
    nodes = users.nodes_of(np.arange(len(users.roster)))
    return [None if node is None else node - FIRST for node in nodes]


def test_users_are_known_by_their_keys_in_the_order_of_the_file(file: Path) -> None:
    users = EnrolledUsers(file)
    link = Link({4: listed(2), 7: listed(0), 9: listed(1)})
    assert users.roster == ROSTER
    assert served(users, link) == [7, 9, 4]
    assert users.missing == 0
    assert not link.asked


def test_the_key_of_a_stranger_serves_nobody(file: Path) -> None:
    lines: list[str] = []
    users = EnrolledUsers(file, lines.append)
    assert served(users, Link({0: listed(5), 1: listed(1), 2: b"", 3: b"no key"})) == [None, 1, None]
    assert [line.split(" ", 2)[2] for line in lines] == 3 * [
        "has a key that is not enrolled; it is not asked"
    ]


def test_of_two_nodes_with_one_key_the_first_stays_and_at_once_neither_is_asked(file: Path) -> None:
    lines: list[str] = []
    users, link = EnrolledUsers(file, lines.append), Link({0: listed(0)})
    assert served(users, link)[0] == 0
    assert not lines
    link.keys[5] = listed(0)
    assert served(users, link)[0] == 0
    assert lines == [f"user {ROSTER[0]!r} has several nodes; at most one of them is asked"]
    assert served(EnrolledUsers(file), link)[0] is None
    del link.keys[0]
    assert served(users, link)[0] == 5


def test_a_node_registered_again_serves_its_user_under_its_new_id(file: Path) -> None:
    users, link = EnrolledUsers(file), Link({0: listed(0), 1: listed(1)})
    assert served(users, link) == [0, 1, None]
    del link.keys[0]
    assert served(users, link) == [None, 1, None]
    link.keys[6] = listed(0)
    assert served(users, link) == [6, 1, None]


@pytest.mark.parametrize("status", ["offline", "unregistered", "registered", "suspended"])
def test_only_nodes_that_are_online_are_asked(status: str, file: Path) -> None:
    users, link = EnrolledUsers(file), Link({0: listed(0), 1: listed(1)})
    link.status[0] = status
    assert served(users, link) == [None, 1, None]


def test_of_several_keys_of_a_user_the_first_that_is_there_serves_it_and_goes_on() -> None:
    """While a clinic changes its key, both are enrolled."""
    users = EnrolledUsers({KEYS[3]: ROSTER[0], KEYS[0]: ROSTER[0], KEYS[1]: ROSTER[1], KEYS[2]: ROSTER[2]})
    link = Link({0: listed(0), 1: listed(3)})
    assert users.roster == ROSTER
    assert served(users, link)[0] == 1
    del link.keys[1]
    assert served(users, link)[0] == 0
    later = EnrolledUsers({KEYS[3]: ROSTER[0], KEYS[0]: ROSTER[0]})
    link = Link({0: listed(0)})
    later.refresh(link)
    link.keys[1] = listed(3)
    later.refresh(link)
    assert later.nodes_of(np.arange(1)) == [FIRST]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "at least one key; got none"),
        (f"{KEYS[0]}\n", "line 1 of .* must end with a user's id"),
        (f"{KEYS[0]} a\n{KEYS[1][:60]} b", "line 2 of .* must hold public keys as ssh-keygen"),
        (f"{KEYS[0]} a\n{KEYS[0]} a", "each key of a user once; got one of 'a' twice"),
        (f"{KEYS[0]} a\n{KEYS[0]} b", "enrolled for one user; got one for 'a' and 'b'"),
        (f"{_public(ed25519.Ed25519PrivateKey.generate())} a", "line 1 of .* must hold public keys"),
        (f'command="x" {KEYS[0]} a', "line 1 of .* must hold public keys"),
        (f"{KEYS[0]} {'x' * 300}", "1 to 256 printable characters"),
        (f"{KEYS[0]} a\x1b[2J", "1 to 256 printable characters"),
    ],
    ids=range(9),
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "enrolled"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what) as error:
        EnrolledUsers(path)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="readable file"):
        EnrolledUsers(tmp_path / "nowhere")


def _private(path: Path, file: Path, **keys: object) -> CorrelatedNoise:
    return CorrelatedNoise(
        FedAvg(), epsilon=8.0, delta=1e-5, clipping_norm=100.0, num_users=3, users_per_round=3, num_rounds=4,
        mechanism="bisr", noise_seed=1, run_dir=path, identity=EnrolledUsers(file),
        handshake_timeout=0.3, **keys,
    )  # type: ignore[arg-type]  # fmt: skip


def _model(strategy: CorrelatedNoise, link: Link, rounds: int) -> np.ndarray:
    result = strategy.start(link, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), num_rounds=rounds)
    strategy.close()
    assert result.arrays is not None
    return result.arrays["w"].numpy()


def test_a_run_never_asks_strangers_and_goes_on_after_a_restart(file: Path, tmp_path: Path) -> None:
    """What a client adds is its place, so strangers in the sum, or users in other places, would be seen."""
    keys = {3: listed(2), 4: listed(0), 5: listed(1), 8: listed(5), 9: listed(4)}
    link = Link(keys)
    strategy = _private(tmp_path / "whole", file)
    whole = _model(strategy, link, 4)
    assert set(link.asked) == {3, 4, 5}
    statement = json.loads((tmp_path / "whole" / "statement.json").read_text())
    identity = next(entry for entry in statement["public_inputs"] if entry["name"] == "user ids")
    assert "enrolment file" in identity["value"]
    assert "true if the SuperLink authenticates" in identity["value"]
    _model(_private(tmp_path / "stopped", file), Link(keys), 2)
    again = {0: listed(1), 1: listed(0), 2: listed(2), 7: listed(5)}  # a new SuperLink: other ids
    app = _adding(lambda place: {0: 5.0, 1: 4.0, 2: 3.0}[place])
    after = _model(_private(tmp_path / "stopped", file), Link(again, app), 4)
    assert np.array_equal(after, whole)


def test_a_file_in_another_order_is_another_run(file: Path, tmp_path: Path) -> None:
    keys = {3: listed(2), 4: listed(0), 5: listed(1)}
    _model(_private(tmp_path / "run", file), Link(keys), 2)
    file.write_text("\n".join(reversed(file.read_text().splitlines())))
    with pytest.raises(ConfigError, match=r"its task\.roster is"):
        _model(_private(tmp_path / "run", file), Link(keys), 4)


def test_nobody_enrolled_is_an_error(file: Path, tmp_path: Path) -> None:
    strategy = _private(tmp_path / "run", file)
    with pytest.raises(RuntimeError, match="no node that serves a known user"):
        strategy.start(Link({1: listed(5)}), ArrayRecord({"w": Array(np.zeros(3, np.float32))}), timeout=0.5)


def test_nodes_of_our_own_app_may_claim_what_their_key_is_enrolled_for() -> None:
    """Several users on a node; what a stranger claims, and what a node claims beyond, is nothing."""
    asked: list[int] = []
    claims = {0: ["ann", "bob", "eve"], 1: ["eve", "ann"], 2: ["ann", "bob", "eve"]}
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        asked.append(int(context.node_config["partition-id"]))
        return hosted_users_reply(message, claims[asked[-1]])

    keyed = (("ann", 0), ("bob", 0), ("eve", 1))
    enrolment = Enrolment(tuple((key, user) for user, place in keyed for key in [_der(place)]))
    lines: list[str] = []
    population = Population(["ann", "bob", "eve"], lines.append, enrolment)
    population.gather(Link({2: listed(5), 1: listed(1), 0: listed(0)}, app), 1.0)
    assert population.nodes_of(np.arange(3)) == [FIRST, FIRST, FIRST + 1]
    assert sorted(asked) == [0, 1]
    assert sum("for whom its key is not enrolled" in line for line in lines) == 2


def _der(place: int) -> bytes:
    der = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return SECRETS[place].public_key().public_bytes(*der)
