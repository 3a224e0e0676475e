"""Server optimizers: pure update rules over flat tensors with explicit state."""

from fedmf.optim.release import RoundRelease, SecondForm, ServerOptimizer
from fedmf.optim.schedule import LearningRateSchedule
from fedmf.optim.sgd import ServerSGD

__all__ = ["LearningRateSchedule", "RoundRelease", "SecondForm", "ServerOptimizer", "ServerSGD"]
