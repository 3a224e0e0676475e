"""The second moments that may be released with the sums.

All are contractions of x ↦ x⊗x, so that one joint sensitivity covers them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

import torch


class SecondMoment(ABC):
    """A linear map L of x⊗x with ‖L‖ ≤ 1, as features of x; abstract.

    Guarantees:
        ‖features(x) − features(y)‖ ≤ ‖x⊗x − y⊗y‖, so the noise that makes (x, x⊗x) private makes
        (x, L(x⊗x)) private, by the same joint sensitivity.
    """

    #: d, the length of x.
    dimension: int
    #: The number of features.
    size: int
    #: A name for people.
    described: ClassVar[str] = "second moment"
    #: True if running averages of it and of x give a covariance, or its diagonal.
    gives_covariance = False

    @property
    def sensitivity_dimension(self) -> int:
        """1 where r_1 is the right constant, else d."""
        return self.dimension

    @abstractmethod
    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Σ over rows of L(x⊗x) for x of shape (m, d), shape (size,)."""

    def features_of_each(self, x: torch.Tensor) -> torch.Tensor:
        """L(x⊗x) of every row alone, shape (m, size), equal to the bit to `features(row[None])`."""
        if not len(x):
            return x.new_empty(0, self.size)
        return torch.stack([self.features(row[None]) for row in x])

    def unpack(self, released: torch.Tensor) -> torch.Tensor:
        """The released features, shape (…, size), in the shape a user expects."""
        return released

    def covariances(
        self, means: torch.Tensor, seconds: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """Ŝ − μ̂⊗μ̂ + v·I, the unbiased covariance, or its diagonal.

        Args:
            means: μ̂, shape (rows, d).
            seconds: Ŝ, unpacked.
            noise: v, the variance of a coordinate of μ̂, shape (rows,).

        Raises:
            ValueError: this second moment does not determine them.
        """
        raise ValueError(
            f"S (second moment) must hold the square of each coordinate; got {type(self).__name__}."
        )

    @abstractmethod
    def of_isotropic_noise(self) -> torch.Tensor:
        """L(I), shape (size,): the expectation of the features of N(0, I), for debiasing."""


@final
class FullMatrix(SecondMoment):
    """x xᵀ as the d(d+1)/2 numbers x_i², √2·x_i x_j (i < j): an isometry of x⊗x.

    Released noise is symmetric: variance τ² on the diagonal and τ²/2 off it, as if the paper's d²
    noises were symmetrized, at half the cost.

    >>> FullMatrix(2).unpack(FullMatrix(2).features(torch.tensor([[1.0, 2.0]])))
    tensor([[1., 2.],
            [2., 4.]])
    """

    gives_covariance = True

    def __init__(self, dimension: int) -> None:
        self.dimension = _dimension(dimension)
        self.size = dimension * (dimension + 1) // 2
        rows, columns = torch.triu_indices(dimension, dimension, dtype=torch.int32)
        self._rows = rows
        self._columns = columns
        self._packed = rows * dimension + columns
        self._scale = torch.full((self.size,), math.sqrt(2), dtype=torch.float64)
        self._scale[rows == columns] = 1.0
        place = torch.empty(dimension, dimension, dtype=torch.int32)
        place[rows, columns] = torch.arange(self.size, dtype=torch.int32)
        place[columns, rows] = place[rows, columns]
        self._place = place.flatten()

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Σ x xᵀ, packed."""
        return (x.mT @ x).flatten().index_select(0, self._packed).mul_(self._scale.to(x.dtype))

    def features_of_each(self, x: torch.Tensor) -> torch.Tensor:
        """The packed x xᵀ of every row, shape (m, size)."""
        products = x.index_select(1, self._rows).mul_(x.index_select(1, self._columns))
        return products.mul_(self._scale.to(x.dtype))

    def unpack(self, released: torch.Tensor) -> torch.Tensor:
        """The symmetric matrices, shape (…, d, d)."""
        values = released / self._scale.to(released.dtype)
        shape = (*released.shape[:-1], self.dimension, self.dimension)
        return values.index_select(-1, self._place).view(shape)

    def covariances(
        self, means: torch.Tensor, seconds: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """The unbiased covariances, shape (rows, d, d)."""
        identity = torch.eye(self.dimension, dtype=seconds.dtype)
        return seconds - means[:, :, None] * means[:, None, :] + noise[:, None, None] * identity

    def of_isotropic_noise(self) -> torch.Tensor:
        """The identity matrix, packed."""
        return (self._scale == 1.0).to(torch.float64)


@final
class DiagonalMoment(SecondMoment):
    """x_i², i = 1 … d: the moment of Adam.

    >>> DiagonalMoment(2).features(torch.tensor([[1.0, 2.0]]))
    tensor([1., 4.])
    """

    described: ClassVar[str] = "squares of coordinates"
    gives_covariance = True

    def __init__(self, dimension: int) -> None:
        self.dimension = self.size = _dimension(dimension)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Σ x²."""
        return (x * x).sum(0)

    def features_of_each(self, x: torch.Tensor) -> torch.Tensor:
        """The squares of every row, shape (m, d)."""
        return x * x

    def covariances(
        self, means: torch.Tensor, seconds: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """The unbiased variances, shape (rows, d)."""
        return seconds - means * means + noise[:, None]

    def of_isotropic_noise(self) -> torch.Tensor:
        """Ones."""
        return torch.ones(self.size, dtype=torch.float64)


@final
class BlockEnergies(SecondMoment):
    """e_B(x) = Σ_{j∈B} x_j² over consecutive disjoint blocks that cover x.

    Map block B of x to the coordinate ‖x_B‖ and block B of y to −‖y_B‖: distances of x do not
    shrink and block energies are the squares of the images. So r is r_d with d = #blocks, and one
    block needs r_1 alone.

    >>> BlockEnergies([1, 2]).features(torch.tensor([[1.0, 2.0, 2.0]]))
    tensor([1., 8.])
    """

    described: ClassVar[str] = "energies of blocks"

    def __init__(self, sizes: Sequence[int]) -> None:
        if not sizes or min(sizes) < 1:
            raise ValueError(f"blocks (sizes) must be positive integers; got {list(sizes)}.")
        self.dimension = sum(sizes)
        self.size = len(sizes)
        self._sizes = torch.tensor(list(sizes))
        self._block = torch.repeat_interleave(torch.arange(self.size), self._sizes)

    @property
    def sizes(self) -> torch.Tensor:
        """Lengths of the blocks in order, shape (size,), int64."""
        return self._sizes

    @property
    def sensitivity_dimension(self) -> int:
        """The number of blocks."""
        return self.size

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Σ of the energies of the blocks."""
        return torch.zeros(self.size, dtype=x.dtype).index_add(0, self._block, (x * x).sum(0))

    def features_of_each(self, x: torch.Tensor) -> torch.Tensor:
        """The energies of every row, shape (m, size)."""
        energies = torch.zeros(len(x), self.size, dtype=x.dtype)
        for column, block in enumerate(self._block.tolist()):
            energies[:, block] += x[:, column] * x[:, column]
        return energies

    def of_isotropic_noise(self) -> torch.Tensor:
        """The sizes of the blocks."""
        return self._sizes.to(torch.float64)


def _dimension(dimension: int) -> int:
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        raise ValueError(f"d (dimension) must be an integer of at least 1; got {dimension!r}.")
    return dimension
