"""Attempts to refute what a run claims: canaries, hostile users, neighbouring worlds."""

from fedmf.audit.canaries import Audit, audit
from fedmf.audit.end_to_end import USUAL, EndToEnd, audit_end_to_end
from fedmf.audit.hostile import BEHAVIOURS, HostileDataset
from fedmf.audit.hostile_worlds import HostileWorld
from fedmf.audit.stage import STAGES, Stage
from fedmf.audit.tasks import audit_task
from fedmf.audit.worlds import Command, Leaving, Verdict, compare, differences, observe

__all__ = [
    "BEHAVIOURS",
    "STAGES",
    "USUAL",
    "Audit",
    "Command",
    "EndToEnd",
    "HostileDataset",
    "HostileWorld",
    "Leaving",
    "Stage",
    "Verdict",
    "audit",
    "audit_end_to_end",
    "audit_task",
    "compare",
    "differences",
    "observe",
]
