"""One user's data, however hostile, change that user's own contribution and nothing else that leaves.

The whole command is run in neighbouring worlds under one key: screens, exit code, logs, published files,
modes, rounds and messages are equal byte by byte, and models differ by one clipped contribution.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
from support.worlds import (
    BEHAVIOURS,
    STAGES,
    HostileDataset,
    Leaving,
    Stage,
    Verdict,
    compare,
    differences,
    observe,
)

from fedmf.cli.app import run as command
from fedmf.data import Digits
from fedmf.rounds import Rounds
from fedmf.runs import PrivateServer

#: Behaviours after which nothing is left that a user could contribute, whatever the model is.
SILENT = (
    {"raise", "exit", "stop", "memory", "nan", "inf", "wrong-shape", "wrong-dtype", "wrong-rows", "empty"}
    | {"missing", "text", "overflow", "no-utf-8", "long-text"}
    | {"null", "null-number", "short-list", "long-list", "empty-list", "very-long-list"}
)
HOSTILE_USER = 1


#: Sums, one row a user, and one row a message.
FORMS = {
    "slice": {"execution.messages": "slice"},
    "per-user": {"execution.messages": "per-user"},
    "one-user": {"execution.messages": "per-user", "execution.users-per-message": 1},
}


#: Every data set with sums, and every other form once, half of the behaviours each, by turns: the script has
#: the whole table.
WORLDS = [*((data, "slice") for data in STAGES), ("digits", "per-user"), ("table", "one-user")]


@pytest.mark.parametrize(("data", "form"), WORLDS)
def test_nothing_but_noised_values_differs(data: str, form: str, tmp_path: Path) -> None:
    stage = Stage.small(tmp_path, data, **FORMS[form], **{"execution.workers": 2})
    stage.act(None)
    benign = observe(command, stage)
    assert (benign.code, benign.published["exit code"], len(benign.models)) == (0, "0", 5), benign.stderr
    assert len(benign.published) > 1
    turn, loud = WORLDS.index((data, form)) % 2, ("opposite", "huge")
    names = [name for i, name in enumerate(stage.behaviours) if i % 2 == turn or name in loud]
    verdicts = [compare(command, stage, (HOSTILE_USER, name), benign) for name in names]
    assert len(verdicts) >= 4
    assert {v.behaviour: v.outside for v in verdicts if v.outside} == {}
    norms = {v.behaviour: v.norm for v in verdicts}
    lines = data in ("table", "contract")  # of which one that cannot be read leaves its user's others
    assert {
        name for name in norms if name in ({"empty"} if lines else SILENT) and norms[name] > 1e-4
    } == set()
    assert not lines or min(norms[name] for name in norms if name in SILENT - {"empty"}) > 1e-3
    assert max(norms.values()) > 0.5, "no hostile user contributes anything"


@functools.cache
def _benign(place: Path, data: str = "linear") -> Leaving:
    stage = _small(place, data)
    stage.act(None)
    return observe(command, stage)


def _small(place: Path, data: str = "linear") -> Stage:
    return Stage.small(place, data, **{"execution.workers": 2})


def _verdict(place: Path, behaviour: str, data: str = "linear") -> Verdict:
    return compare(command, _small(place, data), (HOSTILE_USER, behaviour), _benign(place, data))


def test_the_same_world_twice_leaves_the_same(tmp_path: Path) -> None:
    _benign(tmp_path)
    again = observe(command, _small(tmp_path))
    assert differences(_benign(tmp_path), again) == ()
    assert all(np.array_equal(a, b) for a, b in zip(_benign(tmp_path).models, again.models, strict=True))


@pytest.mark.parametrize("data", ["linear", "digits"])
def test_a_barrier_that_takes_others_along_is_seen(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmf.training.barrier import loading

    true = loading.load_examples

    def all_or_none(dataset, structure, users, counts, note):
        failed: list[tuple[int, str]] = []
        loaded = true(dataset, structure, users, counts, lambda place, why: failed.append((place, why)))
        for place in range(users.size) if failed else ():
            note(place, failed[0][1])
        return loaded

    _benign(tmp_path, data)
    monkeypatch.setattr("fedmf.training.local.load_examples", all_or_none)
    (line,) = _verdict(tmp_path, "raise", data).outside
    assert line.startswith("model after round ")
    assert "others moved by" in line


def test_a_failed_user_who_is_not_counted_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that leaves a user out of the ledger whose worker said that it failed."""
    _benign(tmp_path)
    true, release = Rounds.release, PrivateServer.release

    def forgetful(self, server_round, replies):
        def without(server, total, users):
            failed = {failure.user for failure in self._report.failures}
            total.users -= len(failed & set(users))
            return release(server, total, [user for user in users if user not in failed])

        monkeypatch.setattr(PrivateServer, "release", without)
        return true(self, server_round, replies)

    monkeypatch.setattr(Rounds, "release", forgetful)
    assert any(line.startswith("stdout: ") for line in _verdict(tmp_path, "raise").outside)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("code", 1),
        ("stdout", "other"),
        ("stderr", "other"),
        ("log", "WARNING fedmf user-1"),
        ("files", {"ledger.sqlite": "0644"}),
        ("published", {"exit code": "0", "statement.json": "{}"}),
        ("traffic", ("round 1 train to user-2: (4, 4) bytes",)),
        ("asked", (frozenset({"user-2"}),)),
        ("models", (np.zeros(3, np.float32),)),
    ],
)
def test_each_kind_of_difference_is_seen(field: str, value: object) -> None:
    nothing = Leaving(0, "", "", "", {}, {}, (), (), ())
    (line,) = differences(nothing, dataclasses.replace(nothing, **{field: value}))
    assert line.startswith(f"{field}: ")


def test_hostile_users_among_others_leave_the_others_alone() -> None:
    inner = Digits(users=6).load()
    for name, place in itertools.product(BEHAVIOURS, range(6)):
        hostile = HostileDataset(inner, {place: name})
        others = np.array([user for user in range(6) if user != place])
        features, labels = hostile.examples(others)
        assert features.equal(inner.examples(others)[0])
        assert labels.equal(inner.examples(others)[1])
    with pytest.raises(ValueError, match="behaviour must be one of"):
        HostileDataset(inner, {0: "polite"})
    with pytest.raises(ValueError, match="user must be one of"):
        HostileDataset(inner, {6: "raise"})
