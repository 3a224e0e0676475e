"""Signals never cut a release in two, and never count as an error of a user's training."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.child_processes import in_child
from support.small_runs import small_run

import fedmf
from fedmf.ledger.signals import held_back, stopping
from fedmf.runs.simulation import run_in_process
from fedmf.training import LocalTrainer

RUN = small_run(mechanism="bisr", bands=3, checkpoint_every=100, local_engine="loop")


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Handle SIGINT as a shell's foreground process does; in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_waits_for_the_end_of_a_block() -> None:
    events = list[str]()

    def interrupted() -> None:
        with held_back():
            _kill(signal.SIGINT)
            events.append("ended")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert events == ["ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_handler_raises_arrives_as_an_interrupt_and_is_raised_afterwards() -> None:
    def leave(number: int, frame: object) -> None:
        sys.exit(7)

    before = signal.signal(signal.SIGTERM, leave)
    seen: list[BaseException] = []

    def stopped() -> None:
        with stopping():
            try:
                _kill(signal.SIGTERM)
            except BaseException as error:
                seen.append(error)
                raise

    try:
        with pytest.raises(SystemExit) as left:
            stopped()
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 7
    assert isinstance(seen[0], KeyboardInterrupt)


def _run_until(place: Path, where: str) -> None:
    """Get SIGTERM in round 5: in local training, or between the commit and what follows it."""
    train = LocalTrainer._trained
    with fedmf.start(RUN, place) as session:
        commit = session.directory.ledger.commit_round

        def trained(self, *arguments):
            if session.server.t == 4:
                _kill(signal.SIGTERM)
            return train(self, *arguments)

        def commit_round(t, *rest):
            commit(t, *rest)
            if t == 4:
                _kill(signal.SIGTERM)

        if where == "training":
            LocalTrainer._trained = trained  # type: ignore[method-assign]
        else:
            session.directory.ledger.commit_round = commit_round  # type: ignore[method-assign]
        run_in_process(session)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with idle threads
@pytest.mark.parametrize(("where", "released"), [("training", 4), ("commit", 5)])
def test_sigterm_loses_no_round(where: str, released: int, tmp_path: Path) -> None:
    whole = fedmf.simulate(RUN, tmp_path / "whole")
    assert in_child(lambda: _run_until(tmp_path / "run", where)) != 0
    with fedmf.resume(RUN, tmp_path / "run") as session:
        assert (session.server.t, session.server.lost) == (released, range(0))
    continued = fedmf.simulate(RUN, tmp_path / "run")
    assert torch.equal(continued.parameters, whole.parameters)
