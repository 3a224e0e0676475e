"""Server optimizers: pure update rules over flat tensors with explicit state, and their options."""

from typing import Final

from fedmf.optim.adam import Adam, AdamDebiased, JmeAdam, ServerAdam
from fedmf.optim.energies import Blocks, Energies, energy_weight, relative_energy_error
from fedmf.optim.optimizer_options import ChosenOptimizer, OptimizerOptions, OwnOptimizer, chosen
from fedmf.optim.own_rule import OwnRule, fingerprint_of
from fedmf.optim.server_optimizer import Move
from fedmf.optim.sgd import ServerSGD, Sgd
from fedmf.release.round_release import RoundRelease, ServerOptimizer
from fedmf.values import by_kind

__all__ = [
    "OPTIMIZERS",
    "Adam",
    "AdamDebiased",
    "Blocks",
    "ChosenOptimizer",
    "Energies",
    "JmeAdam",
    "Move",
    "OptimizerOptions",
    "OwnOptimizer",
    "OwnRule",
    "RoundRelease",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "Sgd",
    "chosen",
    "energy_weight",
    "fingerprint_of",
    "relative_energy_error",
]

#: What `[server]` may be, by kind.
OPTIMIZERS: Final[dict[str, type[OptimizerOptions]]] = by_kind(Sgd, Adam, AdamDebiased, JmeAdam)
