"""Neighbouring worlds: the whole command is run with hostile users, and all that leaves it is compared."""

from support.worlds.hostile import BEHAVIOURS, HostileDataset
from support.worlds.observed import Command, Leaving, Verdict, compare, differences, observe
from support.worlds.stage import STAGES, Stage
from support.worlds.tasks import audit_task

__all__ = [
    "BEHAVIOURS",
    "STAGES",
    "Command",
    "HostileDataset",
    "Leaving",
    "Stage",
    "Verdict",
    "audit_task",
    "compare",
    "differences",
    "observe",
]
