"""Tasks of the papers that no keys of a configuration describe: functions for ``task.function``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmf.data import Digits, InMemoryDataset
from fedmf.data.dataset import NumberedUsers
from fedmf.data.hub import Hub
from fedmf.models import Mlp
from fedmf.models.architecture import initialized_from
from fedmf.training import Task, classification

__all__ = ["Bert", "cifar_small_vgg", "cifar_vgg", "imdb_bert", "prototypes", "vgg"]

_CLASSES = 10
_SHAPE = (1, 4, 4)


def prototypes(source: Any) -> Task:
    """Noisy pictures, one a user: the random picture of a class, plus standard normal noise."""
    width = int(np.prod(_SHAPE))
    rng = np.random.default_rng([source.seed, 0x9407])
    pictures = rng.standard_normal((_CLASSES, width), dtype=np.float32)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = rng.integers(_CLASSES, size=count)
        features = rng.standard_normal((count, width), dtype=np.float32) + pictures[labels]
        return torch.from_numpy(features.reshape(count, *_SHAPE)), torch.from_numpy(labels)

    features, labels = drawn(source.users)
    test_features, test_labels = drawn(round(0.2 * source.users))
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=Digits(users=source.users, partition="each-example").split(labels.numpy(), rng),
        user_ids=NumberedUsers(source.users),
        test_features=test_features,
        test_labels=test_labels,
        classes=_CLASSES,
    )
    return classification(dataset, Mlp(hidden_units=(32,)).build(_SHAPE, _CLASSES))


def cifar_vgg(source: Any) -> Task:
    """CIFAR-10, one image a user, and the "3-block VGG" of γ-BIFR: 550,570 parameters."""
    return _cifar(source, dense_units=128)


def cifar_small_vgg(source: Any) -> Task:
    """CIFAR-10, one image a user, and a network as large as the "CNN (0.3M)" of DP-λCGD:
    288,298.
    """
    return _cifar(source, dense_units=0)


def _cifar(source: Any, dense_units: int) -> Task:
    """50,000 training images; the split "test" of 10,000 is the test part."""
    data = Hub(
        path="uoft-cs/cifar10",
        feature_columns=("img",),
        class_names=("0..9",),
        input_shape=(3, 32, 32),
        users=source.users,
        partition="each-example",
        seed=source.seed,
    )
    with initialized_from(source.seed):
        return classification(data.load(), vgg(dense_units))


def vgg(dense_units: int) -> nn.Sequential:
    """Three blocks of two 3×3 convolutions (32, 64, 128 channels) with 2×2 pooling, and a dense
    layer.

    Args:
        dense_units: of the dense layer; 0 for global average pooling.

    References:
        Kairouz et al. (2021), "Practical and Private (Deep) Learning Without Sampling or
        Shuffling", with nn.py of google-research/DP-FTRL; Papernot et al. (2021), "Tempered Sigmoid
        Activations".
    """
    channels = 3
    layers: list[nn.Module] = []
    for filters in (32, 64, 128):
        for _ in range(2):
            convolution = nn.Conv2d(channels, filters, 3, padding=1)
            nn.init.normal_(convolution.weight, std=(9 * channels) ** -0.5)
            layers += [convolution, nn.Tanh()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    if dense_units:
        layers += [
            nn.Flatten(),
            nn.Linear(128 * 4 * 4, dense_units),
            nn.Tanh(),
            nn.Linear(dense_units, 10),
        ]
    else:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def imdb_bert(source: Any) -> Task:
    """25,000 reviews of 512 tokens of BERT's vocabulary, of which a fifth is held out; one review a
    user.
    """
    data = Hub(
        path="stanfordnlp/imdb",
        text_column="text",
        label_column="label",
        class_names=("0", "1"),
        length=512,
        vocabulary_path="tokenizer.json",
        users=source.users,
        partition="each-example",
        seed=source.seed,
    ).load()
    assert isinstance(data.vocabulary, int)
    with initialized_from(source.seed):
        return classification(data, Bert(data.vocabulary, 2))


class Bert(nn.Module):
    """BERT of BERT-tiny's size with a dense output on its first position, from random parameters.

    4,385,922 parameters with 30,522 tokens and two classes. As published there are 4,385,920,
    without the output (258) and with the 2·128 of the two kinds of segments; a single text has one.
    All positions are seen, also padding.

    Args:
        vocabulary: number of tokens.
        classes: number of outputs.

    References:
        Devlin et al. (2019), "BERT"; Turc et al. (2019), "Well-Read Students Learn Better", for
        BERT-tiny.
    """

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128)
        self.positions = nn.Embedding(512, 128)
        self.norm = nn.LayerNorm(128, eps=1e-12)
        block = {"dropout": 0.0, "activation": "gelu", "layer_norm_eps": 1e-12, "batch_first": True}
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(128, nhead=2, dim_feedforward=512, **block)
                for _ in range(2)
            )
        )
        self.pooler = nn.Linear(128, 128)
        self.output = nn.Linear(128, classes)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs of shape (examples, classes) for tokens of shape (examples, positions)."""
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.norm(self.embedding(tokens) + self.positions(places))
        return self.output(self.pooler(self.blocks(x)[:, 0]).tanh())
