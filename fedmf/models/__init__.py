"""Models by name, and any module as a flat vector."""

from fedmf.models.architectures import MODELS, build_model, cnn, mlp
from fedmf.models.flat_model import FlatModel

__all__ = [
    "MODELS",
    "FlatModel",
    "build_model",
    "cnn",
    "mlp",
]
