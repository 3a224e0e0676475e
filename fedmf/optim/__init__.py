"""Server optimizers: pure update rules over flat tensors with explicit state."""

from fedmf.optim.schedule import LearningRateSchedule
from fedmf.optim.sgd import ServerSGD

__all__ = ["LearningRateSchedule", "ServerSGD"]
