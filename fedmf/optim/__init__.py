"""Server optimizers: pure update rules over flat tensors with explicit state."""

from fedmf.optim.adam import ServerAdam
from fedmf.optim.blocks import BLOCKS, Blocks
from fedmf.optim.energies import Energies, ReleasedEnergies, SquaredRelease
from fedmf.optim.fedopt import FedAdagrad, FedYogi
from fedmf.optim.move import Move
from fedmf.optim.release import RoundRelease, SecondForm, ServerOptimizer
from fedmf.optim.sgd import ServerSGD
from fedmf.workload import LearningRateSchedule

__all__ = [
    "BLOCKS",
    "Blocks",
    "Energies",
    "FedAdagrad",
    "FedYogi",
    "LearningRateSchedule",
    "Move",
    "ReleasedEnergies",
    "RoundRelease",
    "SecondForm",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "SquaredRelease",
]
