"""Messages to nodes, what replies add to a sum, and asking again."""

from fedmf.flower.asking.asked import Asked, MessageExchange
from fedmf.flower.asking.grid_link import GridLink

__all__ = ["Asked", "GridLink", "MessageExchange"]
