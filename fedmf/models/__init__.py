"""Models by kind, their parts, and any module as a flat vector."""

from fedmf.models.architectures import MODELS, Architecture, Cnn, Logistic, Mlp, mlp
from fedmf.models.flat_model import FlatModel
from fedmf.models.lora import LogitsOf, with_lora
from fedmf.models.parts import LastPosition, MeanPosition, Positions, Recurrent, Residual, SelfAttention

__all__ = [
    "MODELS",
    "Architecture",
    "Cnn",
    "FlatModel",
    "LastPosition",
    "Logistic",
    "LogitsOf",
    "MeanPosition",
    "Mlp",
    "Positions",
    "Recurrent",
    "Residual",
    "SelfAttention",
    "mlp",
    "with_lora",
]
