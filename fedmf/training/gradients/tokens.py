"""Layers of texts: vectors of tokens and of positions, and one vector for a whole text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmf.compiled import compiled
from fedmf.models import Positions
from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Places, Weight


class Embedding(Layer):
    """Row w of a table for each token w. Of the target only rows of tokens that occur are touched, but by β.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: nn.Embedding, places: Places) -> None:
        self._table = places.of(module.weight, read_back=False)
        self._padding = -1 if module.padding_idx is None else module.padding_idx

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        yield self._table

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        table = self._table.of(parameters)
        tokens = x.reshape(len(x), -1)
        y = aligned_empty(parameters, *tokens.shape, table.shape[-1])
        if y.device.type == "cpu":
            for u, of_user in enumerate(tokens):
                torch.index_select(table[u], 0, of_user, out=y[u])
        else:
            y.copy_(table[torch.arange(len(x), device=x.device)[:, None], tokens])
        return y.view(*x.shape, -1), tokens

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        assert not need_dx
        if self._table.trainable:
            target = self._table.begin(into)
            dy = dy.reshape(*saved.shape, -1)
            if target.device.type == "cpu":
                for table, tokens, vectors in zip(target.numpy(), saved.numpy(), dy.numpy(), strict=True):
                    _add_rows(table, tokens, vectors, vectors.dtype.type(into.alpha), self._padding)
            else:
                users = torch.arange(len(saved), device=saved.device)[:, None].expand_as(saved)
                dy = dy.masked_fill((saved == self._padding)[..., None], 0.0)
                target.index_put_((users, saved), dy * into.alpha, accumulate=True)
        return None


@compiled
def _add_rows(table, tokens, vectors, alpha, padding):
    """Add α times each vector to its token's row, in the order of the text."""
    for i in range(tokens.size):
        if tokens[i] != padding:
            for k in range(vectors.shape[1]):
                table[tokens[i], k] += alpha * vectors[i, k]


class AddedPositions(Layer):
    """x + a vector for each position.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: Positions, places: Places) -> None:
        self._table = places.of(module.weight, read_back=False)

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        yield self._table

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        vectors = self._table.of(parameters)[:, : x.shape[-2]]
        return x + vectors.view(len(x), *(1,) * (x.dim() - 3), *vectors.shape[1:]), None

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        if self._table.trainable:
            sums = dy.flatten(1, -3).sum(dim=1)
            self._table.begin(into)[:, : dy.shape[-2]].add_(sums, alpha=into.alpha)
        return dy


class LastOfPositions(Layer):
    """What stands in the last position."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        return x[..., -1, :], x.shape

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        if not need_dx:
            return None
        dx = dy.new_zeros(saved)
        dx[..., -1, :] = dy
        return dx


class MeanOfPositions(Layer):
    """The mean over positions."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        return x.mean(dim=-2), x.shape

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        return (dy / saved[-2])[..., None, :].expand(saved) if need_dx else None
