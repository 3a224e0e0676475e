"""The workload that every engine runs: data, models and numbers. Needs torch alone; the LoRA head also peft,
and fedmf's folder on the path.

500 users with 20 examples of 1×28×28 each (noisy class prototypes, 10 classes), cohorts of 50 in turn, one
local epoch in batches of 10, learning rate 0.1, clip norm 1, noise multiplier 1, 20 rounds after 3 warm-up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

USERS, EXAMPLES, CLASSES, COHORT, BATCH = 500, 20, 10, 50, 10
LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.1, 1.0, 1.0, 1e-5
WARM_UP, ROUNDS = 3, 20
TESTS = 1000


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy class prototypes: features of shape (count, 1, 28, 28) and labels."""
    prototypes = torch.randn(CLASSES, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return prototypes[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels


def users_data() -> tuple[Tensor, Tensor]:
    """All users' examples; user u owns rows 20u … 20u + 19."""
    return examples(USERS * EXAMPLES, seed=0)


def cohort(t: int) -> range:
    """The users of round t: each takes part in every tenth round."""
    first = t % (USERS // COHORT) * COHORT
    return range(first, first + COHORT)


def mlp() -> nn.Module:
    """784-128-64-10: 109,386 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def cnn() -> nn.Module:
    """conv16-pool-conv32-pool-fc128-fc10 with 3×3 kernels and padding 1: 206,922 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def logistic() -> nn.Module:
    """784-10: 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))


def lora() -> nn.Module:
    """784-128-10, frozen, with a LoRA head of rank 8, W·x + b + B·A·x: 1,104 trained parameters."""
    from fedmf.models import with_lora

    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return with_lora(module, rank=8, alpha=8.0, targets=["3"])


MODELS: dict[str, Callable[[], nn.Module]] = {"logistic": logistic, "lora": lora, "mlp": mlp, "cnn": cnn}


def build(name: str) -> nn.Module:
    """A model with its initial parameters."""
    torch.manual_seed(0)
    return MODELS[name]()


@lru_cache(maxsize=1)
def held(name: str) -> tuple[Tensor, Tensor, nn.Module]:
    """Data and model, made once in a process."""
    return *users_data(), build(name)


def multiply_adds(name: str) -> int:
    """Multiply-adds of one user's training: outputs, weight gradients, input gradients but the first's."""
    if name == "lora":
        trained = 128 * 8 + 8 * CLASSES
        return EXAMPLES * (784 * 128 + 128 * CLASSES + 2 * trained + 8 * CLASSES)
    if name == "logistic":
        layers = [784 * CLASSES]
    elif name == "mlp":
        layers = [784 * 128, 128 * 64, 64 * 10]
    else:
        layers = [28 * 28 * 16 * 9, 14 * 14 * 32 * 16 * 9, 32 * 49 * 128, 128 * CLASSES]
    return EXAMPLES * (3 * sum(layers) - layers[0])
