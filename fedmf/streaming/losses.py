"""Steps of a stream that were released and are not in its state, since that was restored from a backup."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from fedmf.accounting import RESTORED
from fedmf.records import Guard, Opening
from fedmf.streaming.state import StateError, StreamState


def lost_steps(openings: Sequence[Opening]) -> list[dict[str, Any]]:
    """What the openings of a stream say was lost, each loss once."""
    noted = [entry for opening in openings for entry in opening.note.get(RESTORED, ())]
    return list({entry["head"]: entry for entry in noted}.values())


def meet_losses(state: StreamState, guard: Guard, restored: bool) -> None:
    """See that a state holds all steps that the machine knows of, or note those that are lost as spent.

    Raises:
        StateError: steps are lost, and the stream is not to go on from a backup.
    """
    openings, step = state.openings(), state.position.step
    losses = guard.losses(openings, step, lambda steps: None)
    if not losses:
        return
    if not restored:
        raise StateError(
            f"{state.path} is a copy or a restored backup: {losses[-1].released} steps of its stream were "
            f"released, of which it holds {losses[-1].first}. Go on where the others are, or with "
            "--restored-from-backup (restored=True), which counts them as spent."
        )
    state.open_era(os.urandom(32), {**state.note, RESTORED: [dataclasses.asdict(loss) for loss in losses]})
    guard.note(state.openings(), step, None, losses)
