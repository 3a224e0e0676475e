"""Rows of users by a function of the caller's own, and the trial of that function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.functions import function_of
from fedmf.training import RowStatistic
from fedmf.training.barrier import described, pass_interrupt, silent
from fedmf.training.clipping.statistics import plain_row

_OF: Final = "the custom statistic"
#: Entries of updates as no user should have them.
_HOSTILE: Final = (math.nan, 3e38, math.inf, -math.inf, 1e308, -1.0, 0.0)


@dataclass(frozen=True)
class CustomRows(RowStatistic):
    """A function of a user's clipped update, found by its name in whatever process sums.

    Attributes:
        function: ``package.module:function``.
    """

    function: str

    def of(self, update: Tensor) -> Tensor:
        """See `RowStatistic.of`."""
        return tried(self.function, self.size, update.numel())(update)


@cache
def tried(name: str, size: int, dimension: int) -> Callable[[Tensor], Any]:
    """The function of a name, tried once in every process before it sees a user (A-B-A).

    It is called with public vectors: an ordinary one (A), hostile ones (B) and the first again.

    Args:
        name: ``package.module:function``.
        size: q.
        dimension: d.

    Raises:
        ConfigError: it cannot be found, fails, gives other than q finite numbers, or other numbers for the
            same vector after others. Every user's row is then zeros.
    """
    function = function_of(_OF, name)
    plain = torch.linspace(-1.0, 1.0, dimension, dtype=torch.float64)
    unit = torch.zeros(dimension, dtype=torch.float64)
    unit[0] = 1.0
    with silent(), torch.random.fork_rng(devices=[]):
        rows = [_row(function, size, vector) for vector in (plain, torch.zeros_like(plain), unit)]
        afterwards = [_row(function, size, plain) for _ in _after_hostile(function, dimension)]
    if wrong := [row for row in rows if isinstance(row, BaseException)]:
        raise ConfigError(
            f"function (of {_OF}) must give {size} finite numbers for an update of shape ({dimension},); "
            f"{name} failed: {described(wrong[0])}"
        ) from wrong[0]
    if any(row != rows[0] for row in afterwards):
        raise ConfigError(
            f"function (of {_OF}) must depend on its argument alone; {name} gave other numbers for the same "
            "update after it saw others. One user's data would change other users' results: keep nothing "
            "between calls, and draw no random numbers."
        )
    return function


def _row(function: Callable[[Tensor], Any], size: int, update: Tensor) -> list[float] | BaseException:
    """q finite numbers for a made-up vector, or why there are none."""
    try:
        row = plain_row(function(update.clone()), size)
        if not bool(row.isfinite().all()):
            raise ValueError(f"row must be finite; got {row.tolist()[:4]}")
    except BaseException as error:
        pass_interrupt(error)
        return error
    return row.tolist()


def _after_hostile(function: Callable[[Tensor], Any], dimension: int) -> Iterator[None]:
    """Each time it has seen another hostile vector, whatever came of it."""
    for entry in _HOSTILE:
        try:
            function(torch.full((dimension,), entry, dtype=torch.float64))
        except BaseException as error:
            pass_interrupt(error)
        yield
