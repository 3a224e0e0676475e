"""A strategy that changes its config and its attributes as it goes is continued where it stood."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import (
    COHORT,
    ROUNDS,
    USER_LIST,
    USERS,
    Next,
    adding,
    flat,
    model,
    private,
    update_of,
)

from fedmf.flower import ClientReportedIdentity, InProcessGrid, user_id_mod
from fedmf.flower.strategy_memory import restored, stored
from fedmf.ledger.packed import pack, unpack
from fedmf.runs.run import Execution

Seen = list[dict[str, Any]]


class Halving(FedAvg):
    """Halves the learning rate of the config, and keeps values in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.seen: dict[int, list[float]] = {}
        self.sizes = np.zeros(2)
        self.opaque = iter(range(100))

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.rounds += 1
        config["lr"] = config["lr"] / 2
        config["rounds"] = self.rounds
        self.seen[server_round] = [config["lr"]]
        self.sizes = self.sizes + np.array([1, len(self.seen)])
        config["sizes"] = self.sizes.tolist()
        next(self.opaque)
        return super().configure_train(server_round, arrays, config, grid)


def run(
    path: Path, rounds: int, every: int, seen: Seen, fail_at: int = 0, lr: float = 0.8
) -> np.ndarray:
    """Run or continue; the config of the first message of each round goes to ``seen``."""

    def note(message: Message, context: Context, call_next: Next) -> Message:
        config = message.content.config_records["config"]
        if not seen or seen[-1]["server-round"] != config["server-round"]:
            seen.append(dict(config))
        return call_next(message, context)

    def on_round(record: Any) -> None:
        if record.rounds == fail_at:
            raise OSError("stopped")

    name = user_id_mod(lambda context: f"clinic-{context.node_config['partition-id']}")
    grid = InProcessGrid(adding(lambda user, _: update_of(user), mods=[name, note]), nodes=USERS)
    execution = Execution(checkpoint_every=every)
    users = ClientReportedIdentity(USER_LIST)
    strategy = private(Halving(), path, users=users, execution=execution)
    try:
        result = strategy.start(
            grid, model(), rounds, train_config=ConfigRecord({"lr": lr}), on_round=on_round
        )
    finally:
        strategy.close()
    assert result.arrays is not None
    return flat(result.arrays)


@pytest.mark.parametrize("every", [1, 100])
def test_a_continued_run_sends_the_configs_of_a_whole_one(
    every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    whole: Seen = []
    parts: Seen = []
    failed: Seen = []
    arrays = run(tmp_path / "whole", ROUNDS, every, whole)
    assert [config["lr"] for config in whole] == [0.8 / 2**t for t in range(1, ROUNDS + 1)]
    run(tmp_path / "parts", 4, every, parts)
    assert not any("cannot be restored" in line for line in caplog.messages)
    assert np.array_equal(run(tmp_path / "parts", ROUNDS, every, parts), arrays)
    assert parts == whole
    (line,) = {line for line in caplog.messages if "cannot be restored" in line}
    assert line.startswith("fedmf: Halving.opaque changed in earlier rounds")
    with pytest.raises(OSError, match="stopped"):
        run(tmp_path / "failed", ROUNDS, every, failed, fail_at=4)
    assert np.array_equal(run(tmp_path / "failed", ROUNDS, every, failed), arrays)
    assert failed == whole


def test_a_value_that_is_given_anew_replaces_the_one_of_the_run(tmp_path: Path) -> None:
    seen: Seen = []
    run(tmp_path / "run", 2, 1, seen)
    run(tmp_path / "run", 3, 1, seen, lr=0.5)
    assert [config["lr"] for config in seen] == [0.4, 0.2, 0.25]
    assert [config["rounds"] for config in seen] == [1, 2, 3]


def test_the_same_strategy_continues_after_a_failure(tmp_path: Path) -> None:
    rates: list[float] = []

    def note(message: Message, context: Context, call_next: Next) -> Message:
        rates.append(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
        return call_next(message, context)

    def no_pull(_: object) -> Any:
        raise OSError("no network")

    grid = InProcessGrid(adding(lambda user, _: update_of(user), mods=[note]), nodes=USERS)
    strategy = private(Halving(), tmp_path / "run")
    config = ConfigRecord({"lr": 0.8})
    strategy.start(grid, model(), 2, train_config=config)
    pull = grid.pull_messages
    grid.pull_messages = no_pull  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no network"):
        strategy.start(grid, model(), 3, train_config=config)
    grid.pull_messages = pull  # type: ignore[method-assign]
    strategy.start(grid, model(), 3, train_config=config)
    strategy.start(grid, model(), 4, train_config=ConfigRecord({"lr": 0.8}))
    # The nodes answer the messages of the failed call, too.
    assert rates[::COHORT] == [0.4, 0.2, 0.1, 0.1, 0.05]


def test_plain_values_are_kept_with_their_types() -> None:
    values = [
        True,
        2**70,
        "a\udc80b",
        b"\x00",
        None,
        (1, [2.5]),
        {3: {"tensor": 1, "shape": 2}},
        np.float32(0.1),
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.array(["a", "bc"]),
        ConfigRecord({"lr": [0.1], "key": b"x"}),
    ]
    again = restored(unpack(pack({"values": stored(values)}))["values"])
    for value, other in zip(values, again, strict=True):
        assert type(value) is type(other)
        assert np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other
    with pytest.raises(TypeError):
        stored({"opaque": object()})
