"""Whom messages ask, what replies add to a sum, and asking again."""

from fedmf.flower.asking.asked import Asked, MessageForm, RoundReport, Telling, Timetable
from fedmf.flower.asking.persistence import Persistence

__all__ = ["Asked", "MessageForm", "Persistence", "RoundReport", "Telling", "Timetable"]
