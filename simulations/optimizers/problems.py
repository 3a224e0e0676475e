"""Federated problems whose rounds are cheap: what users send, clipped and summed, without any transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmf.data import digit_images
from fedmf.models.architectures import mlp
from fedmf.models.flat_model import FlatModel
from fedmf.optim.blocks import Blocks
from fedmf.training import LocalSGD, LocalTrainer, classification, clip

__all__ = ["Clipping", "Digits", "Problem", "ScaledBlocks"]


@dataclass(frozen=True)
class Clipping:
    """What a user's update is clipped by.

    Args:
        norm: ζ.
        joint: τ of joint clipping, the norm of (x, √τ·L(x⊗x)); 0 for the norm of x alone.
        scales: one factor for each tensor of x, by which it is multiplied first; none for ones.
    """

    norm: float
    joint: float = 0.0
    scales: tuple[float, ...] = ()

    def factors(self, squares: Tensor, fourth: Tensor) -> Tensor:
        """c_u from ‖x_u‖² and ‖L(x_u⊗x_u)‖²."""
        return (self.norm / (squares + self.joint * fourth).sqrt().clamp(min=1e-30)).clamp(max=1.0)


class Problem(ABC):
    """Users, a flat model, and sums of clipped updates.

    Attributes:
        name: of the problem.
        users: U.
        cohort: m.
        rounds: n.
        clip_norm: ζ.
        shapes: of the model's tensors.
    """

    name: str
    users: int
    cohort: int
    rounds: int
    clip_norm: float
    shapes: list[tuple[int, ...]]

    @abstractmethod
    def initial(self) -> Tensor:
        """θ_0."""

    @abstractmethod
    def sums(
        self, parameters: Tensor, cohort: np.ndarray, t: int, clipping: Clipping, blocks: Blocks | None
    ) -> tuple[Tensor, Tensor | None]:
        """Σ_u x_u, float64, and Σ_u of the block energies (c_u L(g_u⊗g_u) for joint clipping)."""

    @abstractmethod
    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """Loss and accuracy on held-out data."""


class Digits(Problem):
    """The 1,797 digits on 360 users and an MLP of 2,410 parameters, local SGD, as `configs/digits.toml`."""

    name, users, cohort, rounds, clip_norm = "digits", 360, 36, 120, 0.3

    def __init__(self, seed: int) -> None:
        dataset = digit_images.Digits(self.users, seed=seed).load()
        model = FlatModel(mlp(64, (32,), 10, seed))
        self.task = classification(dataset, model)
        self.shapes = [tuple(shape) for shape in model.shapes]
        self.trainer = LocalTrainer(self.task, LocalSGD(1, 8, 0.5, seed=seed))

    def initial(self) -> Tensor:
        """See Problem."""
        return self.task.model.initial()

    def sums(
        self, parameters: Tensor, cohort: np.ndarray, t: int, clipping: Clipping, blocks: Blocks | None
    ) -> tuple[Tensor, Tensor | None]:
        """See Problem."""
        ids = [self.task.dataset.user_ids[u] for u in cohort]
        updates = self.trainer.updates(parameters, ids, t).double()
        if clipping.scales:
            scales = torch.tensor(clipping.scales, dtype=torch.float64)
            updates = updates * Blocks.of(self.shapes, "tensor").spread(scales)
        if clipping.joint == 0:
            rows = torch.stack([clip(row, clipping.norm) for row in updates])
            energies = None if blocks is None else sum(blocks.energies(row) for row in rows)
            return rows.sum(0), energies  # type: ignore[return-value]
        assert blocks is not None
        each = torch.stack([blocks.energies(row) for row in updates])
        factors = clipping.factors(updates.square().sum(1), each.square().sum(1))[:, None]
        return (factors * updates).sum(0), (factors * each).sum(0)

    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """See Problem."""
        return self.task.evaluate(parameters)


class ScaledBlocks(Problem):
    """Softmax regression of 100 classes on groups of correlated features, measured in very different units.

    One example a user. Its features in group g are s_g·U_g(a·μ_{g,y} + N(0, I)), with random centres on the
    unit sphere of R^20 and a random orthonormal map U_g into F_g features. The weights of a group are one
    tensor (100, F_g); 10⁵ parameters in all. The groups hold equal information, and their gradients are
    proportional to s_g. Sums over a cohort are made in the 20 dimensions, exactly.
    """

    name, users, cohort, rounds, clip_norm = "scaled blocks", 40_000, 2000, 100, 5.0
    classes, widths, scales, separation, rank = 100, (100, 300, 600), (1.0, 0.1, 0.03), 3.0, 20

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        count, groups = self.users + 2000, len(self.widths)
        labels = torch.randint(self.classes, (count,), generator=generator)
        centres = torch.randn(groups, self.classes, self.rank, generator=generator)
        centres = self.separation * torch.nn.functional.normalize(centres, dim=2)
        self.maps = [
            torch.linalg.qr(torch.randn(width, self.rank, generator=generator))[0].mul(scale)
            for width, scale in zip(self.widths, self.scales, strict=True)
        ]
        inner = torch.randn(groups, count, self.rank, generator=generator).add_(centres[:, labels])
        self.inner, self.test_inner = inner[:, : self.users], inner[:, self.users :]
        self.labels, self.test_labels = labels[: self.users], labels[self.users :]
        self.squares = torch.tensor(self.scales).square() * self.inner.square().sum(2).T  # (users, groups)
        self.shapes = [(self.classes, width) for width in self.widths]

    def initial(self) -> Tensor:
        """See Problem."""
        return torch.zeros(self.classes * sum(self.widths))

    def _logits(self, parameters: Tensor, inner: Tensor) -> Tensor:
        parts = parameters.split([self.classes * w for w in self.widths])
        reduced = [p.view(self.classes, -1) @ U for p, U in zip(parts, self.maps, strict=True)]
        return torch.cat(list(inner), dim=1) @ torch.cat(reduced, dim=1).T

    def sums(
        self, parameters: Tensor, cohort: np.ndarray, t: int, clipping: Clipping, blocks: Blocks | None
    ) -> tuple[Tensor, Tensor | None]:
        """See Problem."""
        w, y, group_squares = self.inner[:, cohort], self.labels[cohort], self.squares[cohort]
        scales = clipping.scales or (1.0,) * len(self.widths)
        group_squares = group_squares * torch.tensor(scales).square()
        residual = torch.nn.functional.one_hot(y, self.classes).float() - self._logits(parameters, w).softmax(
            1
        )
        # The update of a user is −gradient, the outer product of residual and features.
        residual_squares = residual.square()
        squares = residual_squares.sum(1) * group_squares.sum(1)
        fourth = squares
        if clipping.joint:
            assert blocks is not None
            fourth = self._fourth(blocks, w, residual_squares, group_squares)
        factors = clipping.factors(squares, fourth)[:, None]
        weighted = (factors * residual).T
        total = [s * (weighted @ x) @ U.T for s, x, U in zip(scales, w, self.maps, strict=True)]
        flat = torch.cat([part.reshape(-1) for part in total]).double()
        if blocks is None:
            return flat, None
        weights = (factors if clipping.joint else factors.square()) * residual_squares
        if blocks.count == blocks.dimension:
            squared = [weights.T @ (x @ U.T).square_() for x, U in zip(w, self.maps, strict=True)]
            return flat, torch.cat([part.reshape(-1) for part in squared]).double()
        by_class = group_squares.T @ weights  # (groups, classes)
        energies = by_class.reshape(-1) if blocks.count == by_class.numel() else by_class.sum(1)
        assert energies.numel() == blocks.count
        return flat, energies.double()

    def _fourth(self, blocks: Blocks, w: Tensor, residual_squares: Tensor, group_squares: Tensor) -> Tensor:
        """‖L(x_u⊗x_u)‖² of every user."""
        if blocks.count == blocks.dimension:
            features = sum(
                ((x @ U.T).square_().square_().sum(1) for x, U in zip(w, self.maps, strict=True)),
                w.new_zeros(w.shape[1]),
            )
            return residual_squares.square().sum(1) * features
        groups = group_squares.square().sum(1)
        if blocks.count == len(self.widths):
            return residual_squares.sum(1).square() * groups
        return residual_squares.square().sum(1) * groups

    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """See Problem."""
        logits = self._logits(parameters, self.test_inner)
        loss = torch.nn.functional.cross_entropy(logits, self.test_labels)
        return {
            "loss": float(loss),
            "accuracy": float((logits.argmax(1) == self.test_labels).double().mean()),
        }
