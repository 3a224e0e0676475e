"""A stopped run goes on with the very noise of an uninterrupted one, and with no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_runs import linear_task, small_run
from torch import Tensor

from fedmf.errors import LedgerError
from fedmf.noise.rows.noise_stream import HorizonExceededError
from fedmf.records import frames
from fedmf.runs.directory import RunDirectory
from fedmf.runs.session import Session

TASK = linear_task(24, 50)
FORMS = {
    "kept outputs": {"mechanism": "banded-toeplitz", "bands": 4},
    "decaying sums": {"mechanism": "blt"},
    "block sums": {"mechanism": "tree"},
    "drawn again": {"mechanism": "bisr", "bands": 4},
}


def release(session: Session, rounds: int) -> list[Tensor]:
    """So many rounds without a reply: the models move by noise alone."""
    return [session.server.release(session.server.new_sum(), []).clone() for _ in range(rounds)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stop", [1, 5, 11])
def test_resumed_rounds_add_the_same_noise(tmp_path: Path, form: str, stop: int) -> None:
    run = small_run(TASK, **FORMS[form])
    with Session.start(tmp_path / "whole", run) as session:
        expected = release(session, run.cohorts.rounds)
    with Session.start(tmp_path / "parts", run) as session:
        first = release(session, stop)
    with Session.resume(tmp_path / "parts", run) as session:
        rest = release(session, run.cohorts.rounds - stop)
        with pytest.raises(HorizonExceededError):
            release(session, 1)
    assert all(torch.equal(a, b) for a, b in zip([*first, *rest], expected, strict=True))


def test_checkpoints_hold_the_position_and_no_noise(tmp_path: Path) -> None:
    run = small_run(TASK, **FORMS["kept outputs"])
    with Session.start(tmp_path / "run", run) as session:
        release(session, 3)
        restored = session.directory.restore()
        assert restored is not None
        *_, noise = restored
        assert noise == session.server._noise.state_dict()
        assert (noise["t"], set(noise)) == (3, {"t", "key", "domain", "dimension", "digest", "eras"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "0" * 16}, "key .of the saved noise. must be"),
        ({"digest": "0" * 64}, "digest .of the saved noise. must be"),
        ({"dimension": 51}, "dimension .of the saved noise. must be"),
        ({"t": 2}, "t .round of the saved noise. must be 3"),
        ({"t": 13}, "at most n .horizon. = 12; got 13"),
    ],
)
def test_a_checkpoint_of_other_noise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    run = small_run(TASK, **FORMS["kept outputs"])
    with Session.start(tmp_path / "run", run) as session:
        release(session, 3)
    real = RunDirectory.restore

    def other(self: RunDirectory) -> Any:
        restored = real(self)
        assert restored is not None
        return *restored[:3], {**restored[3], **change}

    monkeypatch.setattr(RunDirectory, "restore", other)
    with pytest.raises((ValueError, HorizonExceededError), match=message):
        Session.resume(tmp_path / "run", run)


@pytest.mark.parametrize(("failing", "there"), [("write_at", 2), ("_flush", 3)])
def test_a_round_that_failed_to_commit_has_the_same_noise_when_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, there: int
) -> None:
    """Not before: the process releases nothing more. A frame that is whole is adopted, another made again."""
    run = small_run(TASK, **FORMS["kept outputs"])
    with Session.start(tmp_path / "whole", run) as session:
        expected = release(session, 4)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Session.start(tmp_path / "run", run) as session:
        release(session, 2)
        with monkeypatch.context() as patched:
            patched.setattr(frames, failing, fail)
            with pytest.raises(LedgerError, match=r"round 3 failed .*No space left") as failed:
                release(session, 1)
        with pytest.raises(LedgerError) as repeated:
            release(session, 1)
        assert str(repeated.value) == str(failed.value)
    with Session.resume(tmp_path / "run", run) as session:
        assert session.server.t == there
        assert torch.equal(session.server.parameters, expected[there - 1])
        rest = release(session, 4 - there)
    assert all(torch.equal(a, b) for a, b in zip(rest, expected[there:], strict=True))
