"""A node that does not say whom it serves holds up the first round for a stated time, and no other round."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.small_runs import client_for, linear_task, seeing, small_run

import fedmf
from fedmf.flower import CorrelatedNoise, UsersSayWho, user_id_mod
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid

pytestmark = pytest.mark.usefixtures("own_time")

TASK = linear_task(users=24, dimension=5)
#: Seconds that a silent node may cost before the first round.
LIMIT = 0.5
FIRST = 2**63 + 1000


class Holding(InProcessGrid):
    """Keeps back replies that ``holds``; shows the nodes that ``lists``.

    Attributes:
        rounds: how often was sent for training.
        asked: (round, node) of each message of these.
    """

    def __init__(self, app: ClientApp, nodes: int) -> None:
        super().__init__(app, nodes)
        self.holds: Callable[[str, int], bool] = lambda kind, node: False
        self.lists: Callable[[int], bool] = lambda node: True
        self.rounds, self.asked = 0, list[tuple[int, int]]()
        self.about: dict[str, tuple[str, int]] = {}

    def get_node_ids(self) -> list[int]:
        return [node for node in super().get_node_ids() if self.lists(node - FIRST)]

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        sent = list(messages)
        pushed = super().push_messages(sent)
        asks = all(message.metadata.group_id in ("handshake", "who") for message in sent)
        self.rounds += not asks
        for name, message in zip(pushed, sent, strict=True):
            node = message.metadata.dst_node_id - FIRST
            self.about[name] = "handshake" if asks else "train", node
            if not asks:
                self.asked.append((self.rounds, node))
        return pushed

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        return super().pull_messages([m for m in message_ids if not self.holds(*self.about[m])])


def test_a_silent_node_of_ours(tmp_path: Path, own_time) -> None:
    run = small_run(TASK, messages="per-user", noise_seed=1)
    run = dataclasses.replace(run, execution=dataclasses.replace(run.execution, handshake_timeout=LIMIT))
    seconds: list[float] = []
    present: list[int] = []
    with fedmf.start(run, tmp_path / "run") as session:
        grid = Holding(client_for(session), nodes=3)
        grid.holds = lambda kind, node: kind == "handshake" and node == 2 and len(seconds) < 4

        def observe(report) -> None:  # type: ignore[no-untyped-def]
            seconds.append(own_time.now)
            present.append(report.present)

        run_on_grid(session, grid, seeing(observe))
    assert seconds == pytest.approx([LIMIT] * 12)
    assert sum(present[:4]) < 4 * 6
    assert present[4:] == [6] * 8
    assert min(number for number, node in grid.asked if node == 2) == 5


def _echo(mods: list) -> ClientApp:  # type: ignore[type-arg]
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    return app


ROSTER = ["ann", "bob", "eve"]


def _around(path: Path) -> CorrelatedNoise:
    return CorrelatedNoise(
        FedAvg(), epsilon=8.0, delta=1e-5, clipping_norm=1.0, num_users=3, users_per_round=3, num_rounds=6,
        mechanism="bisr", noise_seed=1, run_dir=path, identity=UsersSayWho(ROSTER),
        handshake_timeout=LIMIT,
    )  # fmt: skip


def _started(strategy: CorrelatedNoise, grid: Holding) -> None:
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), num_rounds=6)
    strategy.close()


def _who(context: Context) -> str:
    return ROSTER[int(context.node_config["partition-id"])]


def test_a_silent_node_of_any_app(tmp_path: Path, own_time) -> None:
    grid = Holding(_echo([user_id_mod(_who)]), nodes=3)
    grid.holds = lambda kind, node: kind == "handshake" and node == 2 and grid.rounds < 3
    _started(_around(tmp_path / "run"), grid)
    assert own_time.now == pytest.approx(LIMIT)
    assert [number for number, node in grid.asked if node == 2] == [4, 5, 6]
    assert [number for number, node in grid.asked if node == 0] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("beside", [True, False])
def test_a_node_that_comes_while_replies_are_awaited_is_asked_in_the_next_round(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 waits for node 0 while node 2 comes, and says who it is only on the second look.

    Without looks beside training it is asked who it is before round 3, and answers too late for that one.
    """
    monkeypatch.setattr("fedmf.flower.strategy._BETWEEN_LOOKS", 0.0 if beside else 1e9)
    grid = Holding(_echo([user_id_mod(_who)]), nodes=3)
    looks = {"handshake": 0, "train": 0}

    def holds(kind: str, node: int) -> bool:
        slow = grid.rounds >= 2 and (kind, node) in (("handshake", 2), ("train", 0))
        looks[kind] += slow
        return slow and looks[kind] < {"handshake": 2, "train": 6}[kind]

    grid.holds = holds
    grid.lists = lambda node: node < 2 or grid.rounds >= 2
    _started(_around(tmp_path / "run"), grid)
    assert [number for number, node in grid.asked if node == 2] == [3, 4, 5, 6] if beside else [4, 5, 6]
