"""Models by kind: each is a value with its sizes, built from a seed."""

from typing import Final

from fedmf.models.architectures.architecture import Architecture
from fedmf.models.architectures.attention import Bert, PflTransformer, Transformer
from fedmf.models.architectures.convolutional import Cnn, PflCnn, ResNet18, Vgg
from fedmf.models.architectures.dense import Logistic, Mlp, mlp
from fedmf.models.architectures.recurrent import Lstm, PflLstm, StackOverflowLstm
from fedmf.values import by_kind

__all__ = [
    "MODELS",
    "Architecture",
    "Bert",
    "Cnn",
    "Logistic",
    "Lstm",
    "Mlp",
    "PflCnn",
    "PflLstm",
    "PflTransformer",
    "ResNet18",
    "StackOverflowLstm",
    "Transformer",
    "Vgg",
    "mlp",
]

#: What `[model]` may be, by kind.
MODELS: Final[dict[str, type[Architecture]]] = by_kind(
    Mlp,
    Cnn,
    Logistic,
    PflCnn,
    Vgg,
    ResNet18,
    Lstm,
    StackOverflowLstm,
    PflLstm,
    Transformer,
    PflTransformer,
    Bert,
)
