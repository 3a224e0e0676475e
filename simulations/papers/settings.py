"""Keys that several figures share: central training on single examples, data sets, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from figures import Keys

__all__ = [
    "BINS",
    "CENTRAL",
    "CIFAR",
    "CIFAR_SMALL_VGG",
    "CIFAR_VGG",
    "DIGITS",
    "FASHION",
    "IMDB_BERT",
    "POISSON",
    "PROTOTYPES",
    "STACKOVERFLOW",
    "budgets",
    "epochs",
    "named",
]

#: The update of one step on one example is minus its clipped gradient.
_ONE_STEP: Final[Keys] = {
    "client.epochs": 1,
    "client.batch-size": 1,
    "client.learning-rate": 1.0,
}
#: Each example is a user of its own.
CENTRAL: Final[Keys] = {"data.partition": "each-example", **_ONE_STEP}


def _function(name: str, users: int) -> Keys:
    """Keys of a task of `paper_tasks`, with one example a user."""
    return {
        "task.kind": "function",
        "task.function": f"paper_tasks:{name}",
        "task.users": users,
        "privacy.delta": 1e-5,
        **_ONE_STEP,
    }


#: 50,000 training images; the split "test" of 10,000 is the test part.
CIFAR: Final[Keys] = {
    **CENTRAL,
    "data.kind": "hub",
    "data.path": "uoft-cs/cifar10",
    "data.feature-columns": "img",
    "data.class-names": "0..9",
    "data.input-shape": "3,32,32",
    "data.users": 50_000,
    "privacy.delta": 1e-5,
}
CIFAR_VGG: Final[Keys] = _function("cifar_vgg", 50_000)
CIFAR_SMALL_VGG: Final[Keys] = _function("cifar_small_vgg", 50_000)
IMDB_BERT: Final[Keys] = _function("imdb_bert", 20_000)
#: Sentences of 20 of 10,004 tokens, and who wrote them.
STACKOVERFLOW: Final[Keys] = {
    "task.kind": "next-token",
    "data.kind": "table",
    "data.path": "stackoverflow.parquet",
    "data.text-column": "tokens",
    "data.user-column": "user",
    "data.partition": "by-user",
    "data.user-list": "users.txt",
    "data.users": 342_477,
    "data.vocabulary-path": "tokenizer.json",
    "data.length": 20,
    "data.most-sequences": 64,
    # The model of Reddi et al. (2021): 4,053,428 parameters, of which torch's second biases are
    # 2,680.
    "model.kind": "lstm",
    "model.embedding": 96,
    "model.hidden": 670,
    "model.dense-units": 96,
    "privacy.delta": 1e-6,
    "privacy.clip-norm": 1.0,
}
#: 1,438 training digits; 359 are the test part.
DIGITS: Final[Keys] = {
    **CENTRAL,
    "data.kind": "digits",
    "data.users": 1438,
    "model.kind": "mlp",
    "model.hidden-units": "32",
    "privacy.delta": 1e-5,
    "privacy.clip-norm": 1.0,
}
#: 60,000 pictures (`fetch_data.py`) and the model of the digits.
FASHION: Final[Keys] = {
    **DIGITS,
    "data.kind": "idx",
    "data.path": "data/fashion-mnist",
    "data.users": 60_000,
}
#: 2,000 noisy pictures of ten kinds, in place of reviews.
PROTOTYPES: Final[Keys] = {**_function("prototypes", 2000), "privacy.clip-norm": 1.0}
#: Amplified by Balls-in-Bins.
BINS: Final[Keys] = {"cohorts.kind": "balls-in-bins", "privacy.amplified": True}

#: Independent noise and Poisson sampling: every example joins every round with one probability.
POISSON: Final[Keys] = {
    "mechanism.kind": "identity",
    "cohorts.kind": "cyclic-poisson",
    "cohorts.min-separation": 1,
    "privacy.amplified": True,
}


def epochs(examples: int, batch: int, count: int) -> Keys:
    """Keys of so many epochs of batches: n = k·b rounds with b = ⌊|D|/B⌋."""
    return {"cohorts.users-per-round": batch, "cohorts.rounds": count * (examples // batch)}


def budgets(*epsilons: float) -> Mapping[str, Keys]:
    """Places of an axis of ε."""
    return {f"{epsilon:g}": {"privacy.epsilon": epsilon} for epsilon in epsilons}


def named(kind: str, bands: int | None = None, **parameters: float) -> Keys:
    """Keys of a mechanism; ``lambda_`` stands for lambda."""
    params = ",".join(f"{name.rstrip('_')}={value}" for name, value in parameters.items())
    given = {"mechanism.bands": bands, "mechanism.params": params}
    return {"mechanism.kind": kind, **{name: value for name, value in given.items() if value}}
