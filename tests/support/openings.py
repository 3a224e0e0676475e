"""Key schedules of runs that were opened several times."""

from __future__ import annotations

import hashlib

from fedmf.noise.key import NoiseKey
from fedmf.noise.schedule import KeySchedule


def fresh(name: str) -> bytes:
    """Random bytes of an opening, the same each time."""
    return hashlib.sha256(name.encode()).digest()


def schedule_of(root: NoiseKey, openings: list[tuple[int, bytes]]) -> KeySchedule:
    """The schedule of a run as its last opening left it."""
    schedule = KeySchedule(root, openings[:-1], released=openings[-1][0])
    schedule.open(*openings[-1])
    return schedule
