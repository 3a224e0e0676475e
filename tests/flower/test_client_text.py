"""Nothing that a client's code says of its failure is on a screen or in a log, in any way."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import USERS, Next, adding, model, private, update_of

from fedmf.errors import ConfigError
from fedmf.flower import ClientReportedIdentity, InProcessGrid
from fedmf.flower.screen import without_client_errors

SECRET = "diagnosis of ann"


class Wordless(Exception):
    def __str__(self) -> str:
        raise OSError(SECRET)


def raise_(error: BaseException) -> None:
    raise error


def chained() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(SECRET) from error


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: raise_(ValueError(SECRET)))
    thread.start()
    thread.join()


class Dying:
    def __del__(self) -> None:
        raise ValueError(SECRET)


FAILURES: dict[str, Callable[[], Any]] = {
    "raises": chained,
    "raises without words": lambda: raise_(Wordless()),
    "exits": lambda: raise_(SystemExit(SECRET)),
    "warns": lambda: warnings.warn(SECRET, stacklevel=1),
    "in a thread": in_a_thread,
    "in a destructor": lambda: Dying() and None,
    "a class of its own": lambda: raise_(type(SECRET, (Exception,), {})("")),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("victims", [1, USERS])
def test_a_failure_is_in_the_file_of_failures_alone(
    kind: str,
    victims: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One user's failure is not seen at all; that of all users is, in words of ours
    (FEDMF-2026-14).
    """
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.DEBUG)

    def fail(message: Message, context: Context, call_next: Next) -> Message:
        if int(context.node_config["partition-id"]) < victims:
            FAILURES[kind]()
        return call_next(message, context)

    grid = InProcessGrid(adding(lambda user, _: update_of(user), mods=[fail]), nodes=USERS)
    strategy = private(FedAvg(), tmp_path / "run")
    strategy.start(grid, model(), 3)
    strategy.close()
    seen = capfd.readouterr()
    told = "\n".join([seen.out, seen.err, caplog.text])
    assert SECRET not in told
    rows = [json.loads(line) for line in (tmp_path / "run/failures.jsonl").read_text().splitlines()]
    raises = kind in ("raises", "raises without words", "exits", "a class of its own")
    assert len(rows) == raises * min(victims, 12)
    assert all(SECRET in row["reason"] for row in rows if "without" not in kind)
    assert ("client apps failed" in told) == (raises and victims > 1)


def test_text_of_a_reply_is_in_the_file_of_failures_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Types, names and ids are text that a client chooses."""

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        arrays = reply.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        if int(context.node_config["partition-id"]) % 2:
            arrays["head"].dtype = SECRET
        else:
            reply.content["arrays"] = ArrayRecord({SECRET: arrays["head"], **arrays})
        return reply

    grid = InProcessGrid(adding(lambda user, _: update_of(user), mods=[tamper]), nodes=USERS)
    strategy = private(FedAvg(), tmp_path / "run")
    strategy.start(grid, model(), 1)
    strategy.close()
    assert "contributions could not be used" in caplog.text
    assert SECRET not in caplog.text
    reasons = (tmp_path / "run/failures.jsonl").read_text()
    assert reasons.count(SECRET) == 4


def test_the_answer_of_a_node_is_not_shown() -> None:
    def answer(message: Message, _: Context) -> Message:
        record = ConfigRecord({"fedmf.users": [SECRET, "ann"]})
        return Message(RecordDict({SECRET: record}), reply_to=message)

    identity = ClientReportedIdentity(["ann"])
    with pytest.raises(ConfigError, match="must claim at most 1 users") as error:
        identity.refresh(InProcessGrid(answer, nodes=1))
    assert SECRET not in str(error.value)
    assert "ann" not in str(error.value)


def test_lines_of_the_simulation_engine_about_clients_are_not_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "propagate", True)
    for module, shown in (("ray_client_proxy", 0), ("vce_api", 0), ("grid", 1)):
        place = f"flwr/{module}.py"
        record = logging.LogRecord("flwr", logging.ERROR, place, 1, SECRET, None, None)
        caplog.clear()
        with without_client_errors():
            logger.handle(record)
        assert len(caplog.records) == shown
        logger.handle(record)
        assert len(caplog.records) == shown + 1
