"""How many of the planned contributions are not zero, and what share is clipped, under the run's ε."""

from fedmf.parts.health.chosen import Health
from fedmf.parts.health.power import Power

__all__ = ["Health", "Power"]
