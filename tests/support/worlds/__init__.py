"""Neighbouring worlds: the whole command is run with hostile users, and all that leaves it is compared."""

from support.worlds.end_to_end import USUAL, EndToEnd, audit_end_to_end
from support.worlds.hostile import BEHAVIOURS, HostileDataset
from support.worlds.hostile_worlds import HostileWorld
from support.worlds.observed import Command, Leaving, Verdict, compare, differences, observe
from support.worlds.stage import STAGES, Stage
from support.worlds.tasks import audit_task

__all__ = [
    "BEHAVIOURS",
    "STAGES",
    "USUAL",
    "Command",
    "EndToEnd",
    "HostileDataset",
    "HostileWorld",
    "Leaving",
    "Stage",
    "Verdict",
    "audit_end_to_end",
    "audit_task",
    "compare",
    "differences",
    "observe",
]
