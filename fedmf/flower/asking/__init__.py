"""Whom messages ask, what replies add to a sum, and asking again."""

from fedmf.flower.asking.asked import Asked, Exchange, MessageForm, Timetable
from fedmf.flower.asking.persistence import Persistence

__all__ = ["Asked", "Exchange", "MessageForm", "Persistence", "Timetable"]
