"""Functions of users' clipped updates, as somebody may write them."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def halves(update: Tensor) -> Tensor:
    """Norms of both halves, with a warning that would tell of a user."""
    warnings.warn(f"seen: {float(update[0])}", stacklevel=1)
    middle = update.numel() // 2
    return torch.stack([update[:middle].norm(), update[middle:].norm()])


def greedy(update: Tensor) -> Tensor:
    """Far above its bound, and it overwrites what it is given."""
    told = 1e12 * update[:2].sign()
    update.fill_(7.0)
    return told


def moody(update: Tensor) -> Tensor:
    """Fails for some users, gives NaN for others, another shape for yet others."""
    first = float(update[0])
    if 0.3 < first < 0.9:
        raise RuntimeError("not today")
    if 0.1 < first <= 0.3:
        return torch.tensor([first, float("nan")])
    return torch.ones(3 if -0.9 < first < -0.3 else 2)


def three(update: Tensor) -> Tensor:
    """More numbers than are named."""
    return update[:3]


NOT_A_FUNCTION = 1.0


_first: list[Tensor] = []
_largest = [0.0]
_calls = [0]
_kept = torch.zeros(2, dtype=torch.float64)


def first_kept(update: Tensor) -> Tensor:
    """In units of the first user it saw."""
    if not _first:
        _first.append(update.clone())
    return update[:2] / (_first[0].norm() + 1e-3)


def largest_kept(update: Tensor) -> Tensor:
    """In units of the largest user so far."""
    _largest[0] = max(_largest[0], float(update.norm()))
    return update[:2] / (_largest[0] + 1e-3)


def poisoned(update: Tensor) -> Tensor:
    """A running mean, which NaN never leaves."""
    _kept.mul_(0.9).add_(update[:2], alpha=0.1)
    return _kept


def counted(update: Tensor) -> Tensor:
    """How often it was called."""
    _calls[0] += 1
    return update[:2] * _calls[0]


def drawn(update: Tensor) -> Tensor:
    """With noise of its own."""
    return update[:2] + torch.randn(2)


def exits(update: Tensor) -> Tensor:
    """Ends the process for large users."""
    if float(update[0]) > 0.2:
        raise SystemExit(3)
    return update[:2]


class _Own(Tensor):
    """A class of somebody's own."""


class _Fatal(BaseException):
    """Neither an Exception nor an interrupt."""


def _raise(error: BaseException) -> Tensor:
    raise error


#: What functions may give for a user whose first entry is above 0.2: not for the vectors of the trial.
ODD = {
    "exit": lambda _: _raise(SystemExit(3)),
    "generator exit": lambda _: _raise(GeneratorExit()),
    "fatal": lambda _: _raise(_Fatal()),
    "sparse": lambda row: row.to_sparse(),
    "compressed": lambda row: row[None].to_sparse_csr(),
    "nowhere": lambda row: row.to("meta"),
    "another class": lambda row: row.as_subclass(_Own),
    "complex": lambda row: row.to(torch.complex128),
    "nested": lambda row: torch.nested.nested_tensor([row]),
    "row of rows": lambda row: row[None],
    "too many": lambda row: torch.cat([row, row]),
    "one number": lambda row: row[0],
    "generator": lambda row: (x for x in row),
    "text": lambda _: "ab",
    "none": lambda _: None,
    "numbers as text": lambda _: ["1", "2"],
    "dictionary": lambda row: {0: row[0], 1: row[1]},
    "not finite": lambda row: row * torch.inf,
}
_odd = [""]


def odd(update: Tensor) -> object:
    """One of `ODD` for some users."""
    row = update[:2].clone()
    return ODD[_odd[0]](row) if 0.2 < float(update[0]) < 0.5 else row


def give(name: str) -> None:
    """Which."""
    _odd[0] = name
