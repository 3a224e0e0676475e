"""Tasks of the papers whose data are no kind of a configuration: functions for ``task.function``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch

from fedmf.data import Digits, InMemoryDataset, canonical_id
from fedmf.data.dataset import NumberedUsers
from fedmf.data.tokens import next_tokens
from fedmf.models import MODELS, Mlp
from fedmf.training import Task, classification, next_token

__all__ = ["prototypes", "stackoverflow"]

_CLASSES, _SHAPE, _MOST_TESTS = 10, (1, 4, 4), 10_000
#: Tokens and those of a sentence; sentences of a user that count.
_VOCABULARY, _LENGTH, _SENTENCES = 10_004, 20, 64


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


def stackoverflow(source: Any) -> Task:
    """Next words of StackOverflow's users: ``train/*.parquet`` and ``test/*.parquet``, a sentence a row.

    Columns are ``user`` and ``tokens``, lists of numbers below 10,004, of which 0 is padding; ``options`` is
    the folder, which has the ids of all users in ``users.txt``.
    """
    folder = Path(source.options)
    users = [canonical_id(line) for line in (folder / "users.txt").read_text("utf-8").splitlines()]
    place = {user: number for number, user in enumerate(users)}
    features, labels, owner = _sentences(folder / "train", place)
    edges = np.cumsum(np.bincount(owner, minlength=len(users)))[:-1]
    owned = [rows[:_SENTENCES] for rows in np.split(np.argsort(owner, kind="stable"), edges)]
    tests, following, _ = _sentences(folder / "test", None)
    chosen = np.random.default_rng([source.seed, 0x70CE]).permutation(len(tests))[:_MOST_TESTS]
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=owned,
        user_ids=users,
        test_features=tests[chosen],
        test_labels=following[chosen],
        vocabulary=_VOCABULARY,
        test_owner="training users",
    )
    module = MODELS["stackoverflow-lstm"]().build((_LENGTH,), _VOCABULARY, _VOCABULARY)
    return next_token(dataset, module, _VOCABULARY)


def _sentences(folder: Path, place: dict[str, int] | None) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Features, labels and owners of sentences, each cut to one length; of these users if any are named."""
    parts, owners = [], []
    for file in sorted(folder.glob("*.parquet")):
        rows = parquet.read_table(file, columns=["user", "tokens"]).to_pydict()
        for user, tokens in zip(map(canonical_id, map(str, rows["user"])), rows["tokens"], strict=True):
            if place is None or user in place:
                parts.append(next_tokens(np.asarray(tokens, np.int64)[: _LENGTH + 1], _LENGTH))
                owners.append(-1 if place is None else place[user])
    sides = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
    counts = [len(part) for part, _ in parts]
    return *sides, np.repeat(np.asarray(owners, np.int64), counts)
