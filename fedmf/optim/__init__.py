"""Server optimizers: pure update rules over flat tensors with explicit state."""

from fedmf.optim.adam import ServerAdam
from fedmf.optim.blocks import BLOCKS, Blocks
from fedmf.optim.energies import Energies, ReleasedEnergies, SquaredRelease
from fedmf.optim.fedopt import FedAdagrad, FedYogi
from fedmf.optim.move import Move
from fedmf.optim.second_moment_weight import energy_weight, relative_energy_error
from fedmf.optim.server_optimizer import RoundRelease, ServerOptimizer
from fedmf.optim.sgd import ServerSGD

__all__ = [
    "BLOCKS",
    "Blocks",
    "Energies",
    "FedAdagrad",
    "FedYogi",
    "Move",
    "ReleasedEnergies",
    "RoundRelease",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "SquaredRelease",
    "energy_weight",
    "relative_energy_error",
]
