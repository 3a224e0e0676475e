"""Whom messages ask, what replies add to a sum, and asking again."""

from fedmf.flower.asking.asked import Asked, MessageForm
from fedmf.flower.asking.persistence import Persistence
from fedmf.flower.asking.telling import RoundReport, Telling
from fedmf.flower.asking.timetable import Timetable

__all__ = ["Asked", "MessageForm", "Persistence", "RoundReport", "Telling", "Timetable"]
