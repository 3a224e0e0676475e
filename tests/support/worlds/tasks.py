"""Tasks of an audit, by name: data sets with hostile users, and users whose update no model moves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import Digits, FederatedDataset, InMemoryDataset, NumberedUsers, Synthetic
from fedmf.models import Mlp
from fedmf.runs import FunctionTask
from fedmf.training import Task, classification
from support.worlds.hostile import HostileDataset, read_script

#: What ``[task] function`` names.
FUNCTION: Final = "support.worlds:audit_task"
#: The task whose users' updates do not depend on the model.
LINEAR: Final = "linear"
#: Numbers of a linear user's example.
_WIDTH: Final = 12
#: How much longer than the clip norm a linear user's update is, so that every one is clipped.
_EXCESS: Final = 1e3


def audit_task(source: FunctionTask) -> Task:
    """The task of a run of the whole command: ``options`` names a data set and the file of its behaviours.

    Args:
        source: its ``options`` read ``NAME FILE``, NAME one of `TASKS`, FILE what `write_script` wrote.

    Raises:
        ValueError: another name.
    """
    name, _, script = source.options.partition(" ")
    if name not in TASKS:
        raise ValueError(f"options must begin with one of {', '.join(TASKS)}; got {source.options!r}.")
    users, seed = source.users, source.task_seed
    if name == LINEAR:
        return linear_task(common_features(users, seed), read_script(Path(script)))
    dataset: FederatedDataset = {
        "digits": Digits(users=users, seed=seed),
        "synthetic": Synthetic(users=users, seed=seed, features=12, classes=4, examples_per_user=12),
    }[name].load()
    hostile = HostileDataset(dataset, read_script(Path(script)))
    shape = tuple(dataset.test_features.shape[1:])
    return classification(hostile, Mlp(hidden_units=(6,)).build(shape, dataset.classes))


TASKS: Final = ("digits", "synthetic", LINEAR)


def linear_task(features: NDArray[np.float32], behaviours: dict[int, str]) -> Task:
    """Users with one example x each and the loss θ·x: user u's update is along −x_u whatever the model is.

    Args:
        features: x_u, shape (users, d).
        behaviours: who misbehaves how.
    """
    users, width = features.shape
    model = nn.Linear(width, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    dataset = InMemoryDataset(
        features=torch.from_numpy(features),
        labels=torch.zeros(users, dtype=torch.int64),
        owned=tuple(np.array([u]) for u in range(users)),
        user_ids=NumberedUsers(users),
        test_features=torch.zeros(1, width),
        test_labels=torch.zeros(1, dtype=torch.int64),
        classes=1,
    )
    return classification(HostileDataset(dataset, behaviours), model, output_as_loss)


def common_features(users: int, seed: int) -> NDArray[np.float32]:
    """Users that pull the model nearly the same way: whoever takes them all out of a sum is seen."""
    rng = np.random.default_rng([seed, 0xA0D17])
    return (_EXCESS * (2.0 + rng.standard_normal((users, _WIDTH)))).astype(np.float32)


def output_as_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of an example is the model's output."""
    return outputs[..., 0]
