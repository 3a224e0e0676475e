"""The stated joint sensitivity beside the worst user that gradient ascent finds, for every second moment.

    python simulations/moments/joint_sensitivity.py [--starts S]

n = 6, d = 3, ζ = 1. Ascent over x_i and y_i in the ball, over every longest pattern, from random starts and
from users that do the same in all rounds. "gap" is 1 − (found/stated)². Prints a table.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.progress import track

from fedmf.mechanisms.closed_forms import bsr, identity, square_root
from fedmf.mechanisms.joint import UserRange, joint_sensitivity
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import pattern_layers
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.moments.second_moment import (
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    SecondMoment,
)
from fedmf.participation import Participation

N, D = 6, 3
SECOND: dict[str, SecondMoment] = {
    "full matrix": FullMatrix(D),
    "diagonal": DiagonalMoment(D),
    "blocks 1 + 2": BlockEnergies([1, 2]),
    "one block": BlockEnergies([3]),
}
PAIRS: dict[str, tuple[Factorization, Factorization]] = {
    "C₁ = C₂ = I": (identity(N), identity(N)),
    "C₁ = C₂ = √A": (square_root(N), square_root(N)),
    "√A, E_0.9": (square_root(N), Toeplitz(0.9 ** np.arange(N), N)),
    "√A, BSR(2)": (square_root(N), bsr(2, N)),
}


def features(second: SecondMoment, x: torch.Tensor) -> torch.Tensor:
    """Row by row, for x of shape (…, d)."""
    flat = x.reshape(-1, 1, D)
    return torch.vmap(second.features)(flat).reshape(*x.shape[:-1], second.size)


def onto_ball(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1.0)


def same_in_all_rounds(count: int, size: int) -> torch.Tensor:
    """x = e₁ and y anywhere in a plane, shape (count, 2, size, d)."""
    angle = torch.linspace(0, torch.pi, count, dtype=torch.float64)
    length = torch.linspace(0, 1, 9, dtype=torch.float64).repeat(count)[:count]
    y = torch.stack([length * angle.cos(), length * angle.sin(), torch.zeros(count)], dim=1)
    y[: count // 2] /= y[: count // 2].norm(dim=1, keepdim=True).clamp_min(1e-9)
    x = torch.eye(1, D, dtype=torch.float64).expand(count, D)
    return torch.stack([x, y], dim=1)[:, :, None].expand(count, 2, size, D).clone()


def worst(
    pair: tuple[Factorization, Factorization],
    second: SecondMoment,
    contract: Participation,
    weight: float,
    adjacency: str,
    starts: int,
) -> float:
    """The largest squared distance found; every value tried is reached by some user."""
    grams = [torch.from_numpy(C.materialize().T @ C.materialize()) for C in pair]
    generator, best = torch.Generator().manual_seed(0), 0.0
    sizes = list(pattern_layers(N, contract.max_participations, contract.min_separation))
    for layer in sizes[-1:]:
        for pattern in layer:
            G1, G2 = (gram[pattern][:, pattern] for gram in grams)
            drawn = torch.randn(starts, 2, len(pattern), D, dtype=torch.float64, generator=generator)
            users = torch.cat([same_in_all_rounds(2 * starts, len(pattern)), onto_ball(drawn * 2)])
            users.requires_grad_()
            step = 0.5 / float(G1.sum() + weight * G2.sum())
            for _ in range(60):
                x, y = users[:, 0], users[:, 1] * (adjacency == "replace-one")
                first, other = x - y, features(second, x) - features(second, y)
                value = torch.einsum("ij,sid,sjd->s", G1, first, first)
                value = value + weight * torch.einsum("ij,sif,sjf->s", G2, other, other)
                best = max(best, float(value.detach().max()))
                (slope,) = torch.autograd.grad(value.sum(), users)
                with torch.no_grad():
                    users.copy_(onto_ball(users + step * slope))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--starts", type=int, default=12)
    starts = parser.parse_args().starts
    contracts = {"k = 1": Participation(N, 1, N), "k = 3, b = 2": Participation(N, 3, 2)}
    lines = [
        "| second moment | C₁, C₂ | participation | adjacency | λ | stated | kind | found | gap |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    cases = [
        (kind, pair, contract, adjacency, weight)
        for kind in SECOND
        for pair in PAIRS
        for contract in contracts
        for adjacency in ("replace-one", "zero-out")
        for weight in (0.5, 3.0)
    ]
    for kind, pair, contract, adjacency, weight in track(cases, description="cases"):
        second, part = SECOND[kind], contracts[contract]
        users = UserRange(1.0, second.sensitivity_dimension, adjacency)  # type: ignore[arg-type]
        stated = joint_sensitivity(*PAIRS[pair], part, weight, users)
        found = worst(PAIRS[pair], second, part, weight, adjacency, starts)
        gap = 1 - found / stated.value**2
        assert gap > -1e-9, (kind, pair, contract, adjacency, weight, found, stated)
        lines.append(
            f"| {kind} | {pair} | {contract} | {adjacency} | {weight:g} | {stated.value:.4f} | "
            f"{stated.kind} | {found**0.5:.4f} | {max(gap, 0.0):.2%} |"
        )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
