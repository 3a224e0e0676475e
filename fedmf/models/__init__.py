"""Models by kind, and flat vectors of the parameters of any module."""

from typing import Final

from fedmf.models.architecture import Architecture
from fedmf.models.attention import Transformer
from fedmf.models.causal_lm import split_causal_lm
from fedmf.models.convolutional import Cnn, ResNet18
from fedmf.models.flat_model import FlatModel
from fedmf.models.frozen import freeze
from fedmf.models.lora import LogitsOf, save_adapters, with_lora
from fedmf.models.mlp import Logistic, Mlp, mlp
from fedmf.models.recurrent import Lstm
from fedmf.values import by_kind

__all__ = [
    "MODELS",
    "Architecture",
    "FlatModel",
    "Logistic",
    "LogitsOf",
    "Mlp",
    "freeze",
    "mlp",
    "save_adapters",
    "split_causal_lm",
    "with_lora",
]

#: Classes of the table `[model]`, by kind.
MODELS: Final[dict[str, type[Architecture]]] = by_kind(
    Mlp, Cnn, Logistic, ResNet18, Lstm, Transformer
)
