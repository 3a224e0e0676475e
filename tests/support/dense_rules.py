"""References for server optimizers, without fedmf: torch.optim, and moments by dense matrices."""

from __future__ import annotations

import numpy as np
import torch


def by_torch(
    make: type[torch.optim.Optimizer],
    start: torch.Tensor,
    updates: torch.Tensor,
    rates: list[float],
    **options,
) -> list[torch.Tensor]:
    """The path of an optimizer of torch on the gradients −u_t, in the type of `start`."""
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make([parameter], lr=rates[0], **options)  # type: ignore[call-arg]
    path = []
    for update, rate in zip(updates, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = -update
        optimizer.step()
        path.append(parameter.detach().clone())
    return path


def averages(decay: float, rounds: int) -> np.ndarray:
    """Row t: weights of an exponential average with Adam's correction, (1 − β)β^{t−s}/(1 −
    β^{t+1}).
    """
    lag = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    weights = np.where(lag >= 0, (1 - decay) * decay ** np.maximum(lag, 0), 0.0)
    return weights / (1 - decay ** (np.arange(rounds)[:, None] + 1))


def membership(sizes: list[int]) -> np.ndarray:
    """Row B: ones at the coordinates of block B."""
    return np.repeat(np.eye(len(sizes)), sizes, axis=1)


def adam_path(
    start: np.ndarray,
    updates: np.ndarray,
    energies: np.ndarray,
    sizes: list[int],
    rates: list[float],
    betas: tuple[float, float],
    eps: float,
    relative_eps: float,
) -> np.ndarray:
    """θ after every round: all first and second moments at once by dense matrices.

    Args:
        start: θ_0, shape (d,).
        updates: u, shape (n, d).
        energies: q, block totals, shape (n, blocks).
    """
    n = len(updates)
    spread = membership(sizes)
    first = averages(betas[0], n) @ updates
    second = np.maximum(averages(betas[1], n) @ energies / np.array(sizes), 0.0)
    mean = second @ np.array(sizes) / sum(sizes)
    scale = np.sqrt(second) @ spread + eps + relative_eps * np.sqrt(mean)[:, None]
    return start + np.cumsum(np.array(rates)[:, None] * first / scale, axis=0)
