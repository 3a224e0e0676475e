"""G10: a user's integers are the same whoever is trained before it, after it or beside it
(A-B-A).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.training import LocalTrainer, classification, next_token
from fedmf.training.engines import LoopEngine

ENGINES = ("auto", "vmap", "loop")
VOCABULARY = 20
CLASSES = 4
EXAMPLES = 5
#: What B holds: a number in some of its places; a token for texts, a label for both.
NUMBERS = {"NaN": np.nan, "infinity": np.inf, "minus infinity": -np.inf, "3e38": 3e38, "usual": 0.5}
TOKENS = {"token -1": -1, "token V": VOCABULARY, "usual": 3}
LABELS = {"label -1": -1, "label beyond": CLASSES, "huge label": 2**40}
SIZES = {"no rows": 0, "many rows": 4 * EXAMPLES}


class Own(nn.Module):
    """A module that no recognizer of layers knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0.0


class Words(nn.Module):
    """Next words by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.layer = nn.LSTM(6, 7, batch_first=True)
        self.head = nn.Linear(7, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens))[0])


class Bag(Words):
    """Next words by word vectors alone."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).repeat(1, 1, 2)[..., :7])


class Moving(nn.Module):
    """Subtracts a moving mean, a buffer, in which an example that is not finite stays."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, CLASSES)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return self.inner(x - self.mean)


class Drawing(nn.Module):
    """Draws from torch's generator, and drops half of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.randn(x.shape))


def cnn(first: int, second: int, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1, groups=groups), nn.ReLU(), nn.Flatten()),
        nn.Linear(second * 16, CLASSES),
    )


def frozen_backbone() -> nn.Module:
    """A convolution with the statistics of a BatchNorm that saw other images."""
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(3, 1))
    layers(torch.randn(20, 1, 8, 8) * 2 + 1)
    return fedmf.freeze(layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "LeNet's 6-16": lambda: cnn(6, 16),
    "the tutorial's 10-20": lambda: cnn(10, 20),
    "1-33": lambda: cnn(1, 33),
    "groups": lambda: cnn(4, 8, groups=2),
    "dense": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 19), nn.ReLU(), nn.Linear(19, CLASSES)
    ),
    "own module": lambda: Own(cnn(3, 5)),
    "frozen first layers": lambda: nn.Sequential(
        frozen_backbone(), nn.Flatten(), nn.Linear(48, CLASSES)
    ),
    "frozen BatchNorm": lambda: Own(
        nn.Sequential(nn.Conv2d(1, 1, 1), frozen_backbone(), nn.Flatten(), nn.Linear(48, CLASSES))
    ),
    "LSTM": Words,
    "word vectors": Bag,
}
#: Modules that keep or draw something, which users are trained with one after another alone.
LOOPED: dict[str, Callable[[], nn.Module]] = {"moving mean": Moving, "random draws": Drawing}


def task_of(model: str) -> tuple[fedmf.Task, list[str]]:
    """A and all B; the B that text or images cannot have are left out."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    words = model in ("LSTM", "word vectors")
    kinds: dict[str, Any] = {**(TOKENS if words else NUMBERS), **({} if words else LABELS), **SIZES}
    features = []
    labels = []
    owned = []
    at = 0
    for kind in ("A", *kinds):
        size = SIZES.get(kind, EXAMPLES)
        x = (
            rng.integers(0, VOCABULARY, (size, 7))
            if words
            else rng.standard_normal((size, 1, 8, 8))
        )
        y = rng.integers(0, VOCABULARY, (size, 7)) if words else rng.integers(0, CLASSES, size)
        if kind in LABELS and not words:
            y[::2] = kinds[kind]
        elif kind not in ("A", *SIZES):
            x.reshape(-1)[::3] = kinds[kind]
        features.append(x)
        labels.append(y)
        owned.append(np.arange(at, at + size))
        at += size
    x = torch.from_numpy(np.concatenate(features).astype(np.int64 if words else np.float32))
    y = torch.from_numpy(np.concatenate(labels))
    dataset = InMemoryDataset(
        x,
        y,
        owned,
        ("A", *kinds),
        x[:1],
        y[:1],
        classes=0 if words else CLASSES,
        vocabulary=VOCABULARY if words else 0,
    )
    module = {**MODELS, **LOOPED}[model]()
    made = next_token(dataset, module, VOCABULARY) if words else classification(dataset, module)
    return made, list(kinds)


def check(model: str, engine: Any) -> None:
    """A alone, then after each B, before it and amid all of them."""
    task, kinds = task_of(model)
    trainer = LocalTrainer(
        task, fedmf.LocalSGD(batch_size=2, learning_rate=0.1, momentum=0.5, engine=engine)
    )
    origin = task.model.initial()

    def integers(*users: str) -> Tensor:
        total = ClippedSum(task.model.dimension, 1.0)
        trainer.add_updates(origin, users, 0, total)
        return total.fixed_point

    alone = integers("A")
    assert alone.any(), "an update that is zero shows nothing"
    for kind in kinds:
        other = integers(kind)
        assert torch.equal(integers("A"), alone), f"after {kind}"
        assert torch.equal(integers(kind, "A") - other, alone), f"beside {kind}"
        assert torch.equal(integers("A", kind) - other, alone), f"before {kind}"
    others = integers(*kinds)
    assert torch.equal(integers(*kinds[:3], "A", *kinds[3:]) - others, alone), "amid all others"
    for kind in kinds:
        if kind in ("NaN", "infinity", "minus infinity", "token -1", "token V", "no rows", *LABELS):
            assert not integers(kind).any(), f"{kind} is that user's zero"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_integers_do_not_depend_on_others(model: str, engine: str) -> None:
    check(model, engine)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", LOOPED)
def test_nothing_that_a_module_keeps_or_draws_reaches_another_user(model: str) -> None:
    check(model, "loop")


#: Modules in which no engine looks, their inputs, and batch sizes: matrices at odd places of a
#: group begin amid a cache line, and numbers of a group of 16 would not fill the vectors of
#: AVX-512.
UNEVEN: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "products": (lambda: Own(nn.Linear(13, 7)), 13, 5),
    "two products": (
        lambda: Own(nn.Sequential(nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 5))),
        33,
        10,
    ),
    "functions": (
        lambda: Own(nn.Sequential(nn.Linear(33, 17), nn.Softplus(), nn.Linear(17, 5))),
        33,
        7,
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_bits_do_not_depend_on_the_place_in_a_group(name: str) -> None:
    """A at every place, after users with as many steps or more, before users with as many or
    fewer (FEDMF-2026-12).
    """
    make, numbers, batch = UNEVEN[name]
    torch.manual_seed(0)
    places = 32
    rows = [
        2 * batch,
        *([2 * batch, 3 * batch] * (places // 2)),
        *([batch, 2 * batch] * (places // 2)),
    ]
    features = torch.randn(sum(rows), numbers)
    labels = torch.randint(CLASSES, (sum(rows),))
    owned = np.split(np.arange(sum(rows)), np.cumsum(rows)[:-1])
    names = ["A", *(f"ahead {u}" for u in range(places)), *(f"behind {u}" for u in range(places))]
    dataset = InMemoryDataset(
        features, labels, owned, names, features[:1], labels[:1], classes=CLASSES
    )
    task = classification(dataset, make())
    trainer = LocalTrainer(task, fedmf.LocalSGD(batch_size=batch, learning_rate=0.1, momentum=0.5))
    (alone,) = trainer.updates(task.model.initial(), ["A"], 0)
    assert alone.any()
    for place in range(places):
        users = [*names[1 : 1 + place], "A", *names[1 + places : 2 * places - place]]
        assert torch.equal(trainer.updates(task.model.initial(), users, 0)[place], alone), place


def test_a_batch_is_filled_up_with_examples_of_its_own_user() -> None:
    """A's last step has one example where B's overflows, and 0·NaN would be NaN."""
    torch.manual_seed(0)
    features = torch.randn(2 * EXAMPLES, 64)
    features[:EXAMPLES] = torch.finfo(torch.float32).max
    labels = torch.arange(2 * EXAMPLES) % CLASSES
    owned = np.split(np.arange(2 * EXAMPLES), 2)
    dataset = InMemoryDataset(
        features, labels, owned, ("B", "A"), features[:1], labels[:1], classes=CLASSES
    )
    layers = nn.Sequential(nn.Linear(64, 19), nn.ReLU(), nn.Linear(19, CLASSES))
    task = classification(dataset, Own(layers))
    local = fedmf.LocalSGD(batch_size=EXAMPLES - 1, learning_rate=0.1, engine="vmap")
    trainer = LocalTrainer(task, local)
    origin = task.model.initial()
    assert not task.model.forward(origin, features[:1]).isfinite().all()
    (alone,) = trainer.updates(origin, ["A"], 0)
    assert alone.any()
    assert torch.equal(trainer.updates(origin, ["B", "A"], 0)[1], alone)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["own module", "LSTM"])
def test_scratch_memory_that_is_not_cleared_is_seen(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that begins where the user before ended."""
    right = LoopEngine._train
    last = list[Tensor]()

    def kept(self: LoopEngine, into: Tensor, origin: Tensor, *more: Any) -> None:
        right(self, into, last[-1] if last else origin, *more)
        last.append(self._flat.detach().clone())

    monkeypatch.setattr(LoopEngine, "_train", kept)
    with pytest.raises(AssertionError):
        check(model, "loop")
