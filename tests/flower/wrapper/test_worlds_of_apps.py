"""Around a Flower strategy too: whatever one client replies, nothing that leaves but noised values differs.

Two worlds under one key, equal but for one client's replies: screen and logs, how the run ends, messages,
names and modes of files, what is published. Models differ by that user's clipped contribution alone. What a
client raises is sent as a SuperNode sends it: its traceback is logged where the client runs, which is this
process only in a simulation (docs/private-flower.md).
"""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from support.hostile_replies import COUNTED, USELESS, Change
from support.worlds.observed import _contents, _logged, _modes, masked
from support.wrapped_apps import CLIP, COHORT, ROUNDS, USERS, Next, adding, flat, model, private, update_of

from fedmf.cli.app import run as command
from fedmf.flower import InProcessGrid
from fedmf.flower.compat import client_error

BEHAVIOURS: dict[str, Change] = {**USELESS, **COUNTED}
VICTIM = 5


@dataclass(frozen=True, eq=False)
class World:
    """What leaves a run of an app, masked as everywhere else."""

    end: str
    screen: str
    log: str
    files: dict[str, str]
    published: dict[str, str]
    traffic: list[tuple[str, int, str, int]]
    models: list[NDArray[np.float64]]


class Listening(InProcessGrid):
    """A grid that notes what is sent to whom."""

    traffic: list[tuple[str, int, str, int]]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid below."""
        sent = list(messages)
        order = {node: place for place, node in enumerate(self.get_node_ids())}
        for message in sent:
            records = message.content.array_records.values()
            size = sum(len(array.data) for record in records for array in record.values())
            t = str(message.content.config_records["config"]["server-round"])
            known = message.metadata
            self.traffic.append((t, order[known.dst_node_id], known.message_type, size))
        return super().push_messages(sent)


@contextmanager
def _audible() -> Iterator[None]:
    """Flower's logger as a server app finds it, whatever other tests made of it."""
    logger = logging.getLogger("flwr")
    before, disabled = logger.level, logger.disabled
    logger.setLevel(logging.INFO)
    logger.disabled = False
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.disabled = disabled


def world(place: Path, change: Change | None) -> World:
    """Run the app in which the victim's replies are changed, and publish."""

    def tamper(message: Message, context: Context, call_next: Next) -> Any:
        reply = call_next(message, context)
        mine = int(context.node_config["partition-id"]) == VICTIM
        if change is None or not mine:
            return reply
        try:
            changed = change(reply)
        except BaseException as error:
            return client_error(error, message)
        wrong = TypeError(f"a client app must return a Message; got {type(changed).__name__}.")
        return changed if isinstance(changed, Message) else client_error(wrong, message)

    run, public, models = place / "run", place / "public", list[NDArray[np.float64]]()
    strategy = private(FedAvg(), run)

    def judge(_number: int, arrays: ArrayRecord) -> MetricRecord:
        models.append(flat(arrays))
        return MetricRecord({"loss": float(np.linalg.norm(models[-1]))})

    grid = Listening(adding(lambda user, _: update_of(user), mods=[tamper]), nodes=USERS)
    grid.traffic, out, err, end = [], io.StringIO(), io.StringIO(), "the horizon"
    with redirect_stdout(out), redirect_stderr(err), _audible(), _logged() as log:
        try:
            strategy.start(grid=grid, initial_arrays=model(), evaluate_fn=judge)
        except BaseException as error:
            end = repr(error)
        strategy.close()
        public.mkdir()
        published = command(["account", str(run), "--full", "--public", str(public / "statement.json")])
    return World(
        end,
        masked(out.getvalue() + err.getvalue(), place),
        masked(log.getvalue(), place),
        _modes(run),
        {"exit code": str(published), **_contents(public, place)},
        sorted(grid.traffic),
        models,
    )


@cache
def benign() -> World:
    """The world in which nobody misbehaves."""
    return world(Path(mkdtemp()), None)


def differences(other: World) -> dict[str, tuple[Any, Any]]:
    """What leaves differently, but for models."""
    names = [field.name for field in fields(World) if field.name != "models"]
    found = {name: (getattr(benign(), name), getattr(other, name)) for name in names}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def test_the_same_world_twice_leaves_the_same(tmp_path: Path) -> None:
    again = world(tmp_path, None)
    assert differences(again) == {}
    assert all(np.array_equal(a, b) for a, b in zip(benign().models, again.models, strict=True))
    assert len(benign().models) == ROUNDS + 1
    assert benign().end == "the horizon"
    assert benign().published["exit code"] == "0"
    assert len(benign().published) > 1
    assert "fedmf: round 6/6, epsilon " in benign().log


@pytest.mark.parametrize("kind", BEHAVIOURS)
def test_nothing_but_noised_values_differs(kind: str, tmp_path: Path) -> None:
    assert len(BEHAVIOURS) == 34
    other = world(tmp_path, BEHAVIOURS[kind])
    assert differences(other) == {}
    gaps = [b - a for a, b in zip(benign().models, other.models, strict=True)]
    moved = [COHORT * (after - before) for before, after in itertools.pairwise(gaps)]
    rounds = {int(t) - 1 for t, node, what, _ in benign().traffic if node == VICTIM and what == "train"}
    assert len(rounds) == 2
    own = update_of(VICTIM) * min(1.0, CLIP / float(np.linalg.norm(update_of(VICTIM))))
    for t, difference in enumerate(moved):
        assert np.linalg.norm(difference) <= (2 * CLIP if t in rounds else 0.0) + 1e-4
        if t in rounds and kind in USELESS:
            np.testing.assert_allclose(difference, -own, atol=1e-4)


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: a loop that tells how many contributions of a round failed."""
    from fedmf.flower import screen
    from fedmf.rounds import Rounds

    tell = Rounds._tell

    def telling(self: Rounds) -> None:
        if self._report is not None:
            screen.say(f"{len(self._report.failures)} failures")
        tell(self)

    monkeypatch.setattr(Rounds, "_tell", telling)
    first = world(tmp_path / "one", None) if (tmp_path / "one").mkdir() is None else None
    (tmp_path / "two").mkdir()
    assert first is not None
    assert first.log != world(tmp_path / "two", USELESS["raises"]).log
