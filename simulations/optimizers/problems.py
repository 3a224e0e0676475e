"""Federated problems whose rounds are cheap: what users send, clipped and summed, without any transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmf.optim import Blocks
from fedmf.training import FlatModel, LocalSGD, LocalTrainer, Task, clip, digits, mlp

__all__ = ["Clipping", "Digits", "Problem", "ScaledBlocks"]


@dataclass(frozen=True)
class Clipping:
    """What a user's update is clipped by.

    Args:
        norm: ζ.
        joint: τ of joint clipping, the norm of (x, √τ·L(x⊗x)); 0 for the norm of x alone.
    """

    norm: float
    joint: float = 0.0

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
        dataset = digits(self.users, partition="iid", dirichlet_alpha=0.5, test_fraction=0.2, seed=seed)
        model = FlatModel(mlp(64, (32,), 10, seed))
        self.task = Task(dataset, model)
        self.shapes = [tuple(shape) for shape in model.shapes]
        self.trainer = LocalTrainer(model, dataset, LocalSGD(1, 8, 0.5), self.task.loss, seed)

    def initial(self) -> Tensor:
        return self.task.model.initial()

    def sums(
        self, parameters: Tensor, cohort: np.ndarray, t: int, clipping: Clipping, blocks: Blocks | None
    ) -> tuple[Tensor, Tensor | None]:
        ids = [self.task.dataset.user_ids[u] for u in cohort]
        updates = self.trainer.updates(parameters, ids, t).double()
        if clipping.joint == 0:
            rows = torch.stack([clip(row, clipping.norm) for row in updates])
            energies = None if blocks is None else sum(blocks.energies(row) for row in rows)
            return rows.sum(0), energies  # type: ignore[return-value]
        assert blocks is not None
        each = torch.stack([blocks.energies(row) for row in updates])
        factors = clipping.factors(updates.square().sum(1), each.square().sum(1))[:, None]
        return (factors * updates).sum(0), (factors * each).sum(0)

    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        return self.task.evaluate(parameters)


class ScaledBlocks(Problem):
    """Softmax regression of 100 classes on three groups of features measured in very different units.

    One example a user. Its features in group g are s_g·(a_g·μ_{g,y} + N(0, I)) with random unit vectors
    μ_{g,y}; the weights of a group are one tensor (100, F_g), 10⁵ parameters in all. The groups hold similar
    information, but their gradients are proportional to s_g = 1, 0.3, 0.1.
    """

    name, users, cohort, rounds, clip_norm = "scaled blocks", 50_000, 5000, 60, 12.0
    classes, widths, scales, separation = 100, (100, 300, 600), (1.0, 0.3, 0.1), 3.0

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale = torch.cat([torch.full((w,), s) for w, s in zip(self.widths, self.scales, strict=True)])
        centres = torch.cat(
            [
                torch.nn.functional.normalize(torch.randn(self.classes, w, generator=generator), dim=1)
                for w in self.widths
            ],
            dim=1,
        )
        count = self.users + 2000
        labels = torch.randint(self.classes, (count,), generator=generator)
        noise = torch.randn(count, sum(self.widths), generator=generator)
        features = (self.separation * centres[labels]).add_(noise).mul_(scale)
        self.features, self.labels = features[: self.users], labels[: self.users]
        self.test_features, self.test_labels = features[self.users :], labels[self.users :]
        self.shapes = [(self.classes, w) for w in self.widths]
        self.starts = np.cumsum([0, *self.widths])

    def initial(self) -> Tensor:
        return torch.zeros(self.classes * sum(self.widths))

    def _logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        parts = parameters.split([self.classes * w for w in self.widths])
        groups = features.split(list(self.widths), dim=1)
        pairs = zip(groups, parts, self.widths, strict=True)
        return sum(x @ p.view(self.classes, w).T for x, p, w in pairs)  # type: ignore[return-value]

    def sums(
        self, parameters: Tensor, cohort: np.ndarray, t: int, clipping: Clipping, blocks: Blocks | None
    ) -> tuple[Tensor, Tensor | None]:
        x, y = self.features[cohort], self.labels[cohort]
        residual = torch.nn.functional.one_hot(y, self.classes).float() - self._logits(parameters, x).softmax(
            1
        )
        # The update of a user is −gradient, the outer product of residual and features.
        group_squares = torch.stack([g.square().sum(1) for g in x.split(list(self.widths), dim=1)], dim=1)
        residual_squares = residual.square()
        squares = residual_squares.sum(1) * group_squares.sum(1)
        fourth = squares
        if clipping.joint:
            assert blocks is not None
            fourth = self._fourth(blocks, x, residual_squares, group_squares)
        factors = clipping.factors(squares, fourth)[:, None]
        total = self._flat((factors * residual).T @ x)
        if blocks is None:
            return total.double(), None
        weights = factors if clipping.joint else factors.square()
        if blocks.count == blocks.dimension:
            return total.double(), self._flat((weights * residual_squares).T @ x.square()).double()
        by_class = (weights * residual_squares).T @ group_squares  # (classes, groups)
        energies = by_class.T.reshape(-1) if blocks.count == by_class.numel() else by_class.sum(0)
        assert energies.numel() == blocks.count
        return total.double(), energies.double()

    def _fourth(self, blocks: Blocks, x: Tensor, residual_squares: Tensor, group_squares: Tensor) -> Tensor:
        """‖L(x_u⊗x_u)‖² of every user."""
        if blocks.count == blocks.dimension:
            return residual_squares.square().sum(1) * x.square().square().sum(1)
        groups = group_squares.square().sum(1)
        if blocks.count == len(self.widths):
            return residual_squares.sum(1).square() * groups
        return residual_squares.square().sum(1) * groups

    def _flat(self, matrix: Tensor) -> Tensor:
        return torch.cat([part.reshape(-1) for part in matrix.split(list(self.widths), dim=1)])

    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        logits = self._logits(parameters, self.test_features)
        loss = torch.nn.functional.cross_entropy(logits, self.test_labels)
        return {
            "loss": float(loss),
            "accuracy": float((logits.argmax(1) == self.test_labels).double().mean()),
        }
