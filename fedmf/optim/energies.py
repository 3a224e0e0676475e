"""Second moments by block: which coordinates share one, where it comes from, and its weight.

`ServerAdam` divides by the square roots of these second moments. A run with a released second
moment takes its weight λ in the privacy budget from `energy_weight`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.moments import BlockEnergies, DiagonalMoment, SecondMoment
from fedmf.moments.methods import default_weight
from fedmf.participation import Participation
from fedmf.release.round_release import RoundRelease

BlockKind = Literal["coordinate", "channel", "tensor", "model"]


@dataclass(frozen=True)
class Blocks:
    """Consecutive disjoint blocks that cover a flat vector, stored as runs of blocks of equal size.

    Args:
        runs: (how many blocks, how many coordinates in each), in order.

    Raises:
        ValueError: no run, or one that is empty.

    Guarantees:
        Keeps nothing of the length of the vector; a vectorised reduction a run, on the vector's
        device.

    >>> blocks = Blocks.of([(2, 3), (2,)], "channel")
    >>> blocks.runs, blocks.sizes
    (((2, 3), (1, 2)), [3, 3, 2])
    >>> blocks.energies(torch.ones(8))
    tensor([3., 3., 2.])
    """

    runs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.runs or min(min(run) for run in self.runs) < 1:
            raise ValueError(f"blocks (runs) must be pairs of positive integers; got {self.runs}.")

    @classmethod
    def of(cls, shapes: Sequence[Sequence[int]], which: str) -> Self:
        """The blocks of a model.

        Args:
            shapes: of its tensors, in the order of the flat vector.
            which: "coordinate" (one block each), "channel" (one for each first index of a tensor of
                two or more dimensions, one for a vector), "tensor", or "model" (one for all).

        Raises:
            ValueError: an unknown kind of block, or no parameters.
        """
        counts = [math.prod(shape) for shape in shapes]
        if which == "coordinate":
            return cls(((sum(counts), 1),))
        if which == "model":
            return cls(((1, sum(counts)),))
        if which in ("tensor", "channel"):
            runs: list[tuple[int, int]] = []
            for shape, count in zip(shapes, counts, strict=True):
                blocks = 1
                if which == "channel" and len(shape) > 1:
                    blocks = shape[0]
                runs.append((blocks, count // blocks))
            return cls(tuple(runs))
        raise ValueError(f"blocks must be one of {', '.join(get_args(BlockKind))}; got {which!r}.")

    @property
    def dimension(self) -> int:
        """d, the length of the vector."""
        return sum(count * size for count, size in self.runs)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return sum(self._counts)

    @property
    def sizes(self) -> list[int]:
        """|B| of each block."""
        sizes: list[int] = []
        for count, size in self.runs:
            sizes.extend([size] * count)
        return sizes

    def second_moment(self) -> SecondMoment:
        """The second moment to release for these blocks: squares, or sums of squares."""
        if self.count == self.dimension:
            return DiagonalMoment(self.dimension)
        return BlockEnergies(self.sizes)

    def energies(self, x: Tensor) -> Tensor:
        """Σ_{j∈B} x_j² of every block, shape (count,)."""
        energies: list[Tensor] = []
        lengths = [count * size for count, size in self.runs]
        for part, (count, size) in zip(x.split(lengths), self.runs, strict=True):
            squares = part.square()
            if size > 1:
                squares = squares.view(count, size).sum(1)
            energies.append(squares)
        return torch.cat(energies)

    def means(self, totals: Tensor) -> Tensor:
        """Block totals divided by block sizes, shape (count,)."""
        means: list[Tensor] = []
        for run, size in self._runs_of(totals):
            means.append(run / size)
        return torch.cat(means)

    def spread(self, values: Tensor) -> Tensor:
        """The value of each block at all of its coordinates, shape (d,)."""
        spread: list[Tensor] = []
        for run, size in self._runs_of(values):
            if size == 1:
                spread.append(run)
            else:
                spread.append(run[:, None].expand(-1, size).reshape(-1))
        return torch.cat(spread)

    def weighted_mean(self, values: Tensor) -> Tensor:
        """Mean over coordinates of `spread(values)`, a scalar tensor."""
        total = values.new_zeros(())
        for run, size in self._runs_of(values):
            total = total + run.sum() * size
        return total / self.dimension

    @property
    def _counts(self) -> list[int]:
        """The number of blocks of each run."""
        return [count for count, _ in self.runs]

    def _runs_of(self, values: Tensor) -> Iterator[tuple[Tensor, int]]:
        """The values of the blocks of each run, with the size of these blocks."""
        for run, (_, size) in zip(values.split(self._counts), self.runs, strict=True):
            yield run, size


@dataclass(frozen=True)
class Energies:
    """Block totals q_t of a round, Σ_{j∈B} of squares.

    "squared" are the squares of the noisy mean u_t itself: DP-Adam's v is mostly the noise.
    "debiased" are q_B = ‖u_B‖² − |B|·Var_t with Var_t = `RoundRelease.mean_variance`, which
    estimate ‖ū_B‖² without bias, ū the mean without noise, under independent and correlated noise
    alike. "released" is joint moment estimation: the mean over users of their energies, E_u‖x_u,B‖²
    = ‖ū_B‖² + Var_u, with noise of its own.

    Args:
        blocks: which coordinates share one second moment.
        source: "squared", "debiased" or "released".

    References:
        Tang, Shpilevskiy and Lécuyer (2024), "DP-AdamBC", for independent noise and single
        coordinates.
    """

    blocks: Blocks
    source: Literal["squared", "debiased", "released"]

    @property
    def second_moment(self) -> SecondMoment | None:
        """The second moment to release with the mean: squares, or sums of squares over blocks."""
        if self.source != "released":
            return None
        return self.blocks.second_moment()

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """q_t, shape (blocks.count,), for the mean cast to the type of the parameters.

        Raises:
            ValueError: the round released no second moment, or one of another size.
        """
        if self.source == "released":
            return self._released(release).to(mean.dtype)
        energies = self.blocks.energies(mean)
        if self.source == "squared":
            return energies
        sizes = torch.ones_like(energies)
        if self.blocks.count < self.blocks.dimension:
            sizes = torch.tensor(self.blocks.sizes, dtype=mean.dtype, device=mean.device)
        return energies.sub_(sizes, alpha=release.mean_variance)

    def _released(self, release: RoundRelease) -> Tensor:
        count = self.blocks.count
        if release.second is None:
            raise ValueError(f"q (second) must hold {count} block energies; got none.")
        if release.second.numel() != count:
            raise ValueError(
                f"q (second) must hold {count} block energies; got {release.second.numel()}."
            )
        return release.second


def relative_energy_error(
    second: Factorization,
    participation: Participation,
    noise_multiplier: float,
    cohort_size: int,
    share: float,
) -> float:
    """The relative error ρ = σ·sens(C₂)·[C₂⁻¹]_00/(m·p) of a block's v̂ in the first round.

    It is the standard deviation of v̂_B over v_B before any averaging, for a block that holds the
    share p of ζ² in each user's energy, under zero-out and for the noise that a release of the
    second moment alone would need. Neither ζ nor the size of the block matters. Averaging over
    1/(1 − β₂) rounds makes the error smaller later, but a v̂ that is mostly noise in the first
    rounds has moved the model by then.

    Args:
        second: C₂.
        participation: (n, k, b).
        noise_multiplier: σ.
        cohort_size: m.
        share: p, in (0, 1]; one over the number of blocks where they are alike.
    """
    if not 0 < share <= 1:
        raise ValueError(f"p (share of the energy in a block) must be in (0, 1]; got {share}.")
    first_row = math.sqrt(float(second.noise_row_variances()[0]))
    sens = sensitivity_of(second, participation).value
    return noise_multiplier * sens * first_row / (cohort_size * share)


def energy_weight(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    relative_error: float,
) -> float:
    """The λ that minimizes (noise of the first moment)·(1 + relative variance of v).

    Under zero-out, with ν = λζ² sens(C₂)²/sens(C₁)², the first moment's variance grows by 1 + ν and
    the relative variance of v is ρ²(1 + ν)/ν; their product (1 + ν)(1 + ρ²(1 + ν)/ν) is least at ν
    = ρ/√(1 + ρ²). So an accurate v costs the mean next to nothing, and no v gets more than half of
    s². Under replace-one the free part is taken.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        relative_error: ρ, `relative_energy_error`.

    Raises:
        ValueError: ρ is not positive.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> C, p = identity(4), Participation(4, 1, 4)
    >>> round(energy_weight(C, C, p, UserRange(1.0, 2, "zero-out"), 0.1), 4)
    0.0995
    """
    if not 0 < relative_error < math.inf:
        raise ValueError(
            f"ρ (relative error of v) must be positive and finite; got {relative_error}."
        )
    even = default_weight(first, second, participation, users)
    if users.adjacency == "replace-one":
        return even
    return even * relative_error / math.hypot(1.0, relative_error)
