"""Users without a node or without a reply: named to the operator, asked again, never counted
twice, and unable to stop a run.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import adding, flat, model, private, update_of

from fedmf import AvailableCohorts, CyclicCohorts, Execution
from fedmf.flower import ClientReportedIdentity, CorrelatedNoise, InProcessGrid, user_id_mod
from fedmf.flower.clients import PAUSES
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundRecord

SILOS = ["north", "south", "west"]
ROUNDS = 3
TIMEOUT = 10.0


class Lossy(InProcessGrid):
    """A grid of silos that loses some replies to training messages.

    Args:
        silos: the users of its nodes.
        lost: how many replies of each silo are lost in each round.
    """

    def __init__(self, silos: list[str], lost: dict[str, int]) -> None:
        nodes = [{"user-id": silo} for silo in silos]
        app = adding(lambda user, _: update_of(user), mods=[user_id_mod()])
        super().__init__(app, len(silos), node_configs=nodes)
        self._silo_of = dict(zip(self.get_node_ids(), silos, strict=True))
        self._lost = lost
        self._asked = dict[str, tuple[str, int]]()  # silo and round by message
        self.answers = dict[tuple[str, int], int]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        names = super().push_messages(sent)
        for name, message in zip(names, sent, strict=True):
            config = message.content.config_records["config"]
            if "server-round" in config:
                silo = self._silo_of[message.metadata.dst_node_id]
                self._asked[name] = silo, int(config["server-round"])  # type: ignore[arg-type]
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            key = self._asked.get(reply.metadata.reply_to_message_id)
            if key is not None:
                self.answers[key] = self.answers.get(key, 0) + 1
                if self.answers[key] <= self._lost.get(key[0], 0):
                    continue
            yield reply


class Halving(FedAvg):
    """A strategy that changes the learning rate each time it is called."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] = 0.5 * float(config.get("lr", 1.0))  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)


def trained(
    grid: InProcessGrid, path: Path, rate: ConfigRecord | None = None, **execution: Any
) -> np.ndarray:
    """The model of a run whose rounds ask all silos."""
    strategy = private(
        Halving(),
        path,
        users=ClientReportedIdentity(SILOS),
        cohorts=CyclicCohorts(rounds=ROUNDS, users_per_round=len(SILOS)),
        execution=Execution(round_timeout=TIMEOUT, connection_timeout=TIMEOUT, **execution),
    )
    try:
        result = strategy.start(grid, model(), train_config=rate)
    finally:
        strategy.close()
    assert result.arrays is not None
    return flat(result.arrays)


def operator_facts(path: Path) -> dict[str, Any]:
    assert (path / "operator.json").stat().st_mode & 0o777 == 0o600
    return json.loads((path / "operator.json").read_text())


def test_a_small_population_is_waited_for_before_anything_is_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own_time: Any
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match=r"at least 3 before training.* Not served: 'west'\. S"):
        trained(Lossy(SILOS[:2], {}), path, handshake_timeout=2.0)
    assert own_time.now == pytest.approx(TIMEOUT)
    assert "waiting for users whom no node serves: 'west'." in caplog.text
    assert operator_facts(path) == {"users_not_served": ["west"], "arrivals": []}
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.released == 0
    caplog.clear()
    trained(Lossy(SILOS[:2], {}), path, min_users=2, min_reply_share=0.6, handshake_timeout=2.0)
    assert operator_facts(path) == {
        "users_not_served": ["west"],
        "absent": {str(number): ["west"] for number in range(1, ROUNDS + 1)},
        "arrivals": [2] * ROUNDS,
    }
    naming = [record for record in caplog.records if "west" in record.getMessage()]
    assert [(record.name, record.levelname) for record in naming] == [("fedmf", "WARNING")]
    # Two of three are enough, so no round is asked again.
    assert own_time.now == pytest.approx(TIMEOUT + 2.0)


@pytest.mark.parametrize("lost", [1, 99])
def test_missing_replies_are_asked_again_and_nobody_counts_twice(
    lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, own_time: Any
) -> None:
    rate = ConfigRecord({"lr": 1.0})
    grid = Lossy(SILOS, {"west": lost})
    released = trained(grid, tmp_path / "lossy", rate)
    assert rate["lr"] == 0.5**ROUNDS  # the strategy wrote each round once
    attempts = min(lost, len(PAUSES)) + 1
    for number in range(1, ROUNDS + 1):
        asked = [grid.answers[silo, number] for silo in SILOS]
        assert asked == [1, 1, attempts]
    arrived = {"1": 3, "99": 2}[str(lost)]
    facts = operator_facts(tmp_path / "lossy")
    assert facts["arrivals"] == [arrived] * ROUNDS
    assert ("too few replies" in caplog.text) == (arrived < 3)
    assert own_time.now <= ROUNDS * (2 * TIMEOUT + sum(PAUSES)) + 1.0
    same = Lossy(SILOS, {})
    if arrived < 3:
        same = Lossy(SILOS[:2], {})
    expected = trained(same, tmp_path / "same", min_users=2, min_reply_share=0.5)
    assert np.array_equal(released, expected)
    assert "west" not in caplog.text or arrived < 3


class Devices(InProcessGrid):
    """A grid of which only some nodes are connected."""

    connected = len(SILOS)

    def get_node_ids(self) -> list[int]:
        return super().get_node_ids()[: self.connected]


@pytest.mark.parametrize(
    ("limits", "excluded"),
    [
        ({"min_separation": 3, "max_participations": 2}, r"1 again in later rounds, .* round 4"),
        ({"min_separation": 1, "max_participations": 1}, "1 in no further round"),
    ],
)
def test_a_round_waits_for_users_whom_k_and_b_admit(
    limits: dict[str, int],
    excluded: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    own_time: Any,
) -> None:
    """Only the user of round 1 stays connected: rounds stop until another user is there."""
    app = adding(lambda user, _: update_of(user), mods=[user_id_mod()])
    grid = Devices(app, node_configs=[{"user-id": silo} for silo in SILOS])
    grid.connected = 1

    def devices() -> CorrelatedNoise:
        return private(
            FedAvg(),
            tmp_path / "run",
            users=ClientReportedIdentity(SILOS),
            cohorts=AvailableCohorts(5, users_per_round=1, **limits),
            execution=Execution(round_timeout=TIMEOUT),
        )

    connected = f"1 connected, 0 may take part now, {excluded}"
    for _ in range(2):
        strategy = devices()
        with pytest.raises(
            RuntimeError, match=f"round 2: no user .* {connected}.*Other users must connect"
        ):
            strategy.start(grid, model())
        strategy.close()
        assert operator_facts(tmp_path / "run")["arrivals"] == [1]
    assert len(re.findall(f"round 2: waiting .* for 1 users .*: {connected}", caplog.text)) == 2
    grid.connected = 2
    strategy = devices()
    strategy.start(grid, model(), num_rounds=2)
    strategy.close()
    assert operator_facts(tmp_path / "run")["arrivals"] == [1, 1]


def test_devices_are_waited_for_and_without_any_the_run_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own_time: Any
) -> None:
    app = adding(lambda user, _: update_of(user), mods=[user_id_mod()])
    grid = Devices(app, node_configs=[{"user-id": silo} for silo in SILOS])

    def leave(record: RoundRecord) -> None:
        grid.connected = 0

    def devices(**execution: Any) -> CorrelatedNoise:
        return private(
            FedAvg(),
            tmp_path / "run",
            users=ClientReportedIdentity(SILOS),
            cohorts=AvailableCohorts(ROUNDS, users_per_round=3, min_separation=1),
            execution=Execution(**execution),
        )

    first = devices(connection_timeout=TIMEOUT)
    with pytest.raises(RuntimeError, match=r"round 2: no user .* within 10 s"):
        first.start(grid, model(), on_round=leave)
    first.close()
    assert own_time.now == pytest.approx(TIMEOUT)
    assert operator_facts(tmp_path / "run")["arrivals"] == [3]
    grid.connected = 1
    second = devices(connection_timeout=0.5 * TIMEOUT, min_reply_share=0.6)
    second.start(grid, model(), num_rounds=2)
    assert own_time.now == pytest.approx(2 * TIMEOUT)  # before the first round, and in the second
    assert "round 2: only 1 users who may take part, for 3 places" in caplog.text
    grid.connected = 2
    second.start(grid, model())
    assert own_time.now == pytest.approx(2.5 * TIMEOUT)
    assert caplog.text.count("places") == 1
    assert operator_facts(tmp_path / "run")["arrivals"] == [3, 1, 2]
    second.close()


def test_a_node_that_leaves_after_it_was_asked_is_not_waited_for(
    tmp_path: Path, own_time: Any
) -> None:
    class Leaving(Devices):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            sent = list(messages)
            if any(message.content.array_records for message in sent):  # a round
                self.connected = 2
            return super().push_messages(sent)

    app = adding(lambda user, _: update_of(user), mods=[user_id_mod()])
    strategy = private(
        FedAvg(),
        tmp_path / "run",
        users=ClientReportedIdentity(SILOS),
        cohorts=AvailableCohorts(ROUNDS, users_per_round=3, min_separation=1),
        execution=Execution(round_timeout=TIMEOUT, min_reply_share=0.5),
    )
    strategy.start(Leaving(app, node_configs=[{"user-id": silo} for silo in SILOS]), model())
    strategy.close()
    assert own_time.now == 0
    facts = operator_facts(tmp_path / "run")
    assert (facts["arrivals"], facts["absent"]) == ([2, 2, 2], {"1": ["west"]})
