"""From a sum of clipped updates and its row of noise to a mean, or to the next model at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

import numpy as np
import torch
from torch import Tensor

from fedmf.clipping import FixedPointSum, ReusedVectors
from fedmf.loops import compiled, fma
from fedmf.noise import NoiseStream, TileWork
from fedmf.optim.server_optimizer import ServerOptimizer
from fedmf.optim.sgd import ServerSGD


@compiled("void(float64[::1], float64, int64[::1], float64, float64, float32[::1])")
def mean_tile(y, scale, integers, unit, size, mean):
    """mean = (unit·integers + scale·y)/size in float32, for a tile of noise.

    Args:
        y: float64.
        scale: float64.
        integers: int64.
        unit: float64.
        size: m > 0, float64.
        mean: float32; set.
    """
    for i in range(y.size):
        mean[i] = np.float32(fma(scale, y[i], np.float64(integers[i]) * unit) / size)


@compiled(
    "void(float64[::1], float64, int64[::1], float64, float64, float32[::1], float32[::1], float32[::1],"
    " float32[::1], float32[::1])"
)
def step_tile(y, scale, integers, unit, size, rule, parameters, velocity, stepped, moving):
    """The entries of v ← β·v + u and θ ← keep·θ + η·Δ, u = (unit·integers + scale·y)/size; fused.

    Args:
        y, scale, integers, unit, size: as for `mean_tile`.
        rule: float32, (β, keep, η).
        parameters: θ, float32.
        velocity: v, float32; of length 0 with β = 0.
        stepped: the new θ; set.
        moving: the new v; set, if there is one.
    """
    momentum, keep, rate = rule[0], rule[1], rule[2]
    one = np.float32(1.0)
    for i in range(y.size):
        update = np.float32(fma(scale, y[i], np.float64(integers[i]) * unit) / size)
        direction = update
        if velocity.size:
            direction = fma(momentum, velocity[i], update)
            moving[i] = direction
        before = parameters[i]
        if keep != one:
            before = before * keep
        stepped[i] = fma(rate, direction, before)


_NONE: Final = np.empty(0, np.float32)


class ServerPass:
    """What happens to every entry of a vector as a round is released, tile by tile on all cores:

        u = (Σ + std·[C⁻¹z]_t)/m, and for a rule of which each entry is for itself also its step.

    Args:
        noise: of the whole vector.
        size: m, the planned cohort size, in the unit that means are wanted in.
        std: standard deviation of the noise per unit of C⁻¹z; 0 adds none.
        vectors: where those that are returned come from.

    Guarantees:
        The bits do not depend on threads. No argument changes but the position of the noise.
    """

    def __init__(
        self, noise: NoiseStream, size: float, std: float, vectors: ReusedVectors | None = None
    ) -> None:
        self._noise, self._size, self._std = noise, float(size), std
        self._vectors = ReusedVectors() if vectors is None else vectors

    def mean(self, t: int, total: FixedPointSum, like: Tensor) -> Tensor:
        """u of round t.

        Args:
            t: 0-based round.
            total: Σ.
            like: a vector of the type and on the device that u should have.
        """
        if not _is_plain(like):
            self._noise.seek(t)
            noisy = total.total()
            if self._std > 0:
                self._noise.add_(noisy, self._std)
            else:
                self._noise.skip()
            return noisy.div_(self._size).to(like)

        mean = self._vectors.empty(like.numel())

        def work(y: Any, scale: float, integers: Any, unit: float, into: Any) -> None:
            mean_tile(y, scale, integers, unit, self._size, into)

        self._in_tiles(t, total, work, mean.numpy())
        return mean

    @staticmethod
    def steps(rule: ServerOptimizer, parameters: Tensor) -> TypeGuard[ServerSGD]:
        """Whether `step` can make a rule's step."""
        return isinstance(rule, ServerSGD) and _is_plain(parameters)

    def step(
        self, t: int, total: FixedPointSum, rule: ServerSGD, parameters: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What ``rule.step`` makes of u, in one pass; to the bit where torch fuses products and sums as well.

        Args:
            t: 0-based round.
            total: Σ.
            rule: one that `steps` names.
            parameters: θ_t, float32.
            state: of the rule.
        """
        stepped = self._vectors.empty(parameters.numel())
        new = {name: self._vectors.empty(value.numel()) for name, value in state.items()}
        velocity, moving = (each["velocity"].numpy() if each else _NONE for each in (state, new))
        numbers, vectors = rule.numbers(t), (parameters.detach().numpy(), velocity, stepped.numpy(), moving)

        def work(y: Any, scale: float, integers: Any, unit: float, *parts: Any) -> None:
            step_tile(y, scale, integers, unit, self._size, numbers, *parts)

        self._in_tiles(t, total, work, *vectors)
        return stepped, new

    def _in_tiles(self, t: int, total: FixedPointSum, work: Callable[..., None], *vectors: Any) -> None:
        """Do the work on each tile, given its noise, integers, their unit and its parts of the vectors."""
        integers = total.fixed_point.numpy()

        def on_tile(y: Any, scale: float, low: int) -> None:
            summed, *parts = (vector[low : low + y.size] for vector in (integers, *vectors))
            work(y, scale, summed, total.unit, *parts)

        self._noise.seek(t)
        if self._std > 0:
            self._noise.add_(TileWork(integers.size, on_tile), self._std)
        else:
            self._noise.skip()
            on_tile(np.zeros(integers.size), 0.0, 0)


def _is_plain(vector: Tensor) -> bool:
    """Whether compiled passes are for it."""
    return vector.device.type == "cpu" and vector.dtype == torch.float32
