"""Dialogues by Flower's messages."""

from __future__ import annotations

from abc import abstractmethod

from flwr.app import ArrayRecord

from fedmf.flower.boundary import ServedUsers
from fedmf.rounds import Dialogue


class MessageDialogue(Dialogue):
    """With clients on a grid.

    Args:
        served: which node serves whom.
        refusals: see `Dialogue`.
        most_bytes: of a reply, beside what its exchange allows.
    """

    def __init__(self, served: ServedUsers, refusals: int, most_bytes: int) -> None:
        super().__init__(served, refusals)
        self.nodes, self.most_bytes = served, most_bytes

    @property
    @abstractmethod
    def arrays(self) -> ArrayRecord:
        """The released model, as Flower's result and functions of the caller hold it."""
