"""Users whose data misbehave: each way is a function of the examples that a data set was about to give."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import FederatedDataset

Examples = tuple[Tensor, Tensor]
_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Asked:
    """What a data set was about to give to a trainer: the examples of some users, one of them hostile.

    Args:
        features: of all users asked for, shape (examples, …); a copy.
        labels: likewise.
        rows: those of the hostile user.
        classes: of the data set.
    """

    features: Tensor
    labels: Tensor
    rows: slice
    classes: int

    def with_features(self, value: float) -> Examples:
        """The hostile user's features all of one value."""
        self.features[self.rows] = value
        return self.features, self.labels

    def without(self, rows: slice) -> Examples:
        """Fewer rows than the users own."""
        kept = torch.ones(len(self.features), dtype=torch.bool)
        kept[rows] = False
        return self.features[kept], self.labels[kept]


def _raise(error: BaseException) -> Examples:
    raise error


def _diverge(asked: Asked) -> Examples:
    """Finite examples: the first step leaves a model whose second one overflows."""
    own = asked.features[asked.rows]
    # By the user's own rows: who else is asked for at once must not matter.
    signs = torch.where(torch.arange(len(own)) % 2 == 0, 1.0, -1.0).reshape(-1, *[1] * (own.ndim - 1))
    asked.features[asked.rows] = (1e20 * signs * (1 + own.abs())).to(own.dtype)
    return asked.features, asked.labels


def _slow(asked: Asked) -> Examples:
    time.sleep(_SECONDS)
    return asked.features, asked.labels


def _rare_label(asked: Asked, label: int) -> Examples:
    asked.labels[asked.rows] = label
    return asked.features, asked.labels


def _opposite(asked: Asked) -> Examples:
    asked.features[asked.rows] *= -1
    return asked.features, asked.labels


#: What a hostile user's data do when somebody asks for them, by name. "slow" and "opposite" are in order
#: otherwise; "empty" owns nothing from the start.
BEHAVIOURS: Final[dict[str, Callable[[Asked], Examples]]] = {
    "raise": lambda asked: _raise(ValueError("the row cannot be decoded")),
    "exit": lambda asked: _raise(SystemExit(3)),
    "stop": lambda asked: _raise(StopIteration()),
    "memory": lambda asked: _raise(MemoryError()),
    "nan": lambda asked: asked.with_features(float("nan")),
    "inf": lambda asked: asked.with_features(float("inf")),
    "huge": lambda asked: asked.with_features(1e38),
    "diverging": _diverge,
    "wrong-shape": lambda asked: (asked.features[..., :-1], asked.labels),
    "wrong-dtype": lambda asked: (asked.features.double(), asked.labels.to(torch.int32)),
    "wrong-rows": lambda asked: asked.without(slice(asked.rows.start, asked.rows.start + 1)),
    "rare-label": lambda asked: _rare_label(asked, asked.classes + 5),
    "negative-label": lambda asked: _rare_label(asked, -7),
    "slow": _slow,
    "empty": lambda asked: asked.without(asked.rows),
    "opposite": _opposite,
}


class HostileDataset(FederatedDataset):
    """A data set some of whose users misbehave when their examples are asked for.

    Args:
        dataset: whose users, test part and structure it has.
        behaviours: names of `BEHAVIOURS` by index of the user.

    Raises:
        ValueError: an unknown behaviour or user.

    Guarantees: asked for users that behave, it gives what ``dataset`` gives.
    """

    def __init__(self, dataset: FederatedDataset, behaviours: Mapping[int, str]) -> None:
        unknown = sorted(set(behaviours.values()) - set(BEHAVIOURS))
        if unknown:
            raise ValueError(f"behaviour must be one of {', '.join(BEHAVIOURS)}; got {unknown[0]!r}.")
        if strangers := [user for user in behaviours if not 0 <= user < dataset.users]:
            raise ValueError(f"user must be one of 0..{dataset.users - 1}; got {strangers[0]}.")
        self._dataset, self._behaviours = dataset, dict(behaviours)
        self._hostile = np.array(sorted(behaviours), dtype=np.int64)
        self._empty = np.array([u for u, name in behaviours.items() if name == "empty"], dtype=np.int64)
        self.user_ids, self.classes = dataset.user_ids, dataset.classes
        self.test_features, self.test_labels = dataset.test_features, dataset.test_labels

    @property
    def counts_are_exact(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the data set says, also where its users break the promise."""
        return self._dataset.counts_are_exact

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._dataset.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `FederatedDataset.sizes`."""
        return np.where(np.isin(users, self._empty), 0, self._dataset.sizes(users))

    def examples(self, users: NDArray[np.int64]) -> Examples:
        """See `FederatedDataset.examples`; raises or gives nonsense if a hostile user is among them."""
        features, labels = self._dataset.examples(users)
        places = np.flatnonzero(np.isin(users, self._hostile))
        if not places.size:
            return features, labels
        features, labels = features.clone(), labels.clone()
        ends = np.cumsum(self._dataset.sizes(users))
        sizes = self._dataset.sizes(users)
        for place in places[::-1].tolist():  # from the end: rows may be left out
            rows = slice(int(ends[place] - sizes[place]), int(ends[place]))
            behaviour = BEHAVIOURS[self._behaviours[int(users[place])]]
            features, labels = behaviour(Asked(features, labels, rows, self.classes))
        return features, labels

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`."""
        moved = copy.copy(self)
        moved._dataset = self._dataset.to(device)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved


def write_script(path: Path, behaviours: Mapping[int, str]) -> None:
    """Write who misbehaves how: the file stands for raw data, which no configuration names."""
    path.write_text(json.dumps({str(user): name for user, name in behaviours.items()}), encoding="utf-8")


def read_script(path: Path) -> dict[int, str]:
    """Read what `write_script` wrote."""
    return {int(user): name for user, name in json.loads(path.read_text(encoding="utf-8")).items()}
