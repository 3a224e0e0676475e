"""What a disturbed run is compared with: the same run in one process, where exactly the same users fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedmf
from fedmf.flower.client_app import make_client_app
from fedmf.flower.local_run import InProcessGrid
from fedmf.flower.simulation import run_on_grid, worker_pool
from fedmf.runs import Session, local_trainer, opened_evidence

__all__ = ["Lost", "in_one_process", "model", "participations", "records"]

#: Users whose contribution is the zero vector, by 0-based round.
Lost = Mapping[int, frozenset[str]]


def in_one_process(run: fedmf.Run, place: Path, lost: Lost) -> None:
    """Make a run whose messages about these users fail; messages must not ask others together with them."""
    with fedmf.start(run, place) as session:
        grid = InProcessGrid(_failing(session, lost), nodes=run.execution.workers)
        run_on_grid(session, grid, assignment=worker_pool(session))


def _failing(session: Session, lost: Lost) -> ClientApp:
    trainer = local_trainer(session.run, session.task)
    inner, outer = make_client_app(lambda _: (trainer, session.sums)), ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        config: Any = message.content.config_records["config"]
        failing = lost.get(config["round"], frozenset()) & set(config["users"])
        if failing:
            assert failing == set(config["users"])
            raise RuntimeError("lost in the disturbed run")
        return inner(message, context)

    @outer.query()
    def query(message: Message, context: Context) -> Message:
        return inner(message, context)

    return outer


def model(path: Path) -> bytes:
    """The released model, to be compared."""
    return b"".join(tensor.numpy().tobytes() for tensor in fedmf.load_model(path).values())


def participations(path: Path) -> list[tuple[int, str]]:
    """Rounds and users of a ledger."""
    with opened_evidence(path) as evidence:
        _, ledger, _ = evidence.records
        return sorted(ledger.participations())


def records(path: Path) -> tuple[bytes, list[tuple[int, str]]]:
    """Model and ledger of a run."""
    return model(path), participations(path)
