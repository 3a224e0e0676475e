"""The rounds of a run: one loop, and what it asks of clients, wherever they are; clients of this process.

Nothing here knows Flower. `fedmf.flower` has the clients that answer messages.
"""

from fedmf.rounds.clients import ByNode, Dialogue, Exchange, Link, Part, Question, Served
from fedmf.rounds.here import check_users_here, run_in_process
from fedmf.rounds.loop import Observer, RoundReport, Rounds, unseen
from fedmf.rounds.requests import (
    Answer,
    MessageForm,
    Request,
    trained,
)

__all__ = [
    "Answer",
    "ByNode",
    "Dialogue",
    "Exchange",
    "Link",
    "MessageForm",
    "Observer",
    "Part",
    "Question",
    "Request",
    "RoundReport",
    "Rounds",
    "Served",
    "check_users_here",
    "run_in_process",
    "trained",
    "unseen",
]
