"""Models by kind, their parts, and any module as a flat vector."""

from fedmf.models.architectures import (
    MODELS,
    Architecture,
    Bert,
    Cnn,
    Logistic,
    Lstm,
    Mlp,
    PflCnn,
    PflLstm,
    PflTransformer,
    ResNet18,
    StackOverflowLstm,
    Transformer,
    Vgg,
    mlp,
)
from fedmf.models.flat_model import FlatModel
from fedmf.models.lora import LogitsOf, with_lora
from fedmf.models.parts import LastPosition, MeanPosition, Positions, Recurrent, Residual, SelfAttention
from fedmf.models.tokens import FirstPosition, Sinusoids

__all__ = [
    "MODELS",
    "Architecture",
    "Bert",
    "Cnn",
    "FirstPosition",
    "FlatModel",
    "LastPosition",
    "Logistic",
    "LogitsOf",
    "Lstm",
    "MeanPosition",
    "Mlp",
    "PflCnn",
    "PflLstm",
    "PflTransformer",
    "Positions",
    "Recurrent",
    "ResNet18",
    "Residual",
    "SelfAttention",
    "Sinusoids",
    "StackOverflowLstm",
    "Transformer",
    "Vgg",
    "mlp",
    "with_lora",
]
