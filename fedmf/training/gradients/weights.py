"""Parameter tensors of a layer: every user has its own, or all share one that nobody trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from fedmf.training.gradients.gradient import Accumulation


class Weight(ABC):
    """One parameter tensor of a layer."""

    trainable: ClassVar[bool]

    @abstractmethod
    def of(self, rows: Tensor) -> Tensor:
        """Its values for the users whose flat vectors are given, shape (users, …)."""

    @abstractmethod
    def begin(self, into: Accumulation) -> Tensor:
        """β·target for this tensor, shape (users, …), to which α·gradient is still to be added."""

    @abstractmethod
    def add(self, into: Accumulation, gradient: Tensor) -> None:
        """target ← β·target + α·gradient, for this tensor."""

    @abstractmethod
    def add_product(self, into: Accumulation, left: Tensor, right: Tensor) -> None:
        """The same for a gradient that is a product of matrices, which never exists by itself."""


class Own(Weight):
    """A part of every user's flat vector.

    Args:
        start: its first place in the flat vector.
        parameter: the module's.
        read_back: whether its layer reads it on the way back.
    """

    trainable = True

    def __init__(self, start: int, parameter: Tensor, read_back: bool) -> None:
        self.part, self.shape = slice(start, start + parameter.numel()), parameter.shape
        self.read_back = read_back
        #: Whether another layer with the same tensor has added to the target before, in a backward pass.
        self.added = False

    def of(self, rows: Tensor) -> Tensor:
        """See `Weight.of`."""
        return rows[:, self.part].view(-1, *self.shape)

    def begin(self, into: Accumulation) -> Tensor:
        """See `Weight.begin`."""
        target = self.of(into.target)
        if self.added or into.beta == 1.0:
            return target
        return target.mul_(into.beta) if into.beta else target.zero_()

    def add(self, into: Accumulation, gradient: Tensor) -> None:
        """See `Weight.add`."""
        if self.added:
            self.of(into.target).add_(gradient, alpha=into.alpha)
        else:
            into.add(self.of(into.target), gradient)

    def add_product(self, into: Accumulation, left: Tensor, right: Tensor) -> None:
        """See `Weight.add_product`."""
        beta = 1.0 if self.added else into.beta
        matrices = into.target[:, self.part].view(-1, left.shape[1], right.shape[2])
        matrices.baddbmm_(left, right, beta=beta, alpha=into.alpha)


class Constant(Weight):
    """A frozen tensor: no part of the flat vector, and no gradient.

    Args:
        value: the module's parameter.
    """

    trainable = False

    def __init__(self, value: Tensor) -> None:
        self._value = value.detach()

    def of(self, rows: Tensor) -> Tensor:
        """See `Weight.of`."""
        if (self._value.device, self._value.dtype) != (rows.device, rows.dtype):
            self._value = self._value.to(rows)
        return self._value.expand(len(rows), *self._value.shape)

    def begin(self, into: Accumulation) -> Tensor:
        """Nothing is ever added."""
        raise TypeError("a frozen tensor has no gradient.")

    def add(self, into: Accumulation, gradient: Tensor) -> None:
        """Nothing is ever added."""
        raise TypeError("a frozen tensor has no gradient.")

    def add_product(self, into: Accumulation, left: Tensor, right: Tensor) -> None:
        """Nothing is ever added."""
        raise TypeError("a frozen tensor has no gradient.")


class Places:
    """Where each parameter of a module stands in the flat vector, tied ones once.

    Args:
        module: the whole model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._starts: dict[Tensor, int] = {}
        length = 0
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._starts[parameter] = length
                length += parameter.numel()
        self._unused = set(self._starts)

    @property
    def all_used(self) -> bool:
        """Whether every trainable parameter has been asked for."""
        return not self._unused

    def of(self, parameter: Tensor, read_back: bool = True) -> Weight:
        """The weight that a module's parameter is; see `Own`."""
        if not parameter.requires_grad:
            return Constant(parameter)
        self._unused.discard(parameter)
        return Own(self._starts[parameter], parameter, read_back)

    def maybe(self, parameter: Tensor | None) -> Weight | None:
        """The same for one that a module may lack."""
        return None if parameter is None else self.of(parameter, read_back=True)
