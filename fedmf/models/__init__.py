"""Models by kind, and any module as a flat vector."""

from fedmf.models.architectures import MODELS, Architecture, Cnn, Logistic, Mlp, mlp
from fedmf.models.flat_model import FlatModel

__all__ = [
    "MODELS",
    "Architecture",
    "Cnn",
    "FlatModel",
    "Logistic",
    "Mlp",
    "mlp",
]
