"""From a sum of clipped updates and its row of noise to a mean, or to the next model at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.compiled import compiled, fused_multiply_add
from fedmf.noise import BlockedNoise, NoiseStream
from fedmf.optim.server_optimizer import ServerOptimizer
from fedmf.optim.sgd import ServerSGD
from fedmf.training import FixedPointSum, empty_vector, on_all_cores

_fma = fused_multiply_add()


@compiled
def mean_part(noisy, size, mean):
    """mean = noisy/size in float32.

    Args:
        noisy: float64.
        size: m > 0, float64.
        mean: float32; set.
    """
    for i in range(noisy.size):
        mean[i] = np.float32(noisy[i] / size)


@compiled
def step_part(
    noisy: NDArray[np.float64],
    size: float,
    rule: NDArray[np.float32],
    parameters: NDArray[np.float32],
    velocity: NDArray[np.float32],
    stepped: NDArray[np.float32],
    moving: NDArray[np.float32],
) -> None:
    """The entries of v ← β·v + u and θ ← keep·θ + η·Δ, u = noisy/size; fused.

    Args:
        noisy: float64.
        size: m > 0, float64.
        rule: float32, (β, 1 with Nesterov's Δ = u + β·v and 0 with Δ = v, keep, η).
        parameters: θ, float32.
        velocity: v, float32; of length 0 with β = 0.
        stepped: the new θ; set.
        moving: the new v; set, if there is one.
    """
    momentum, nesterov, keep, rate = rule[0], rule[1], rule[2], rule[3]
    one = np.float32(1.0)
    for i in range(noisy.size):
        update = np.float32(noisy[i] / size)
        direction = update
        if velocity.size:
            direction = _fma(momentum, velocity[i], update)
            moving[i] = direction
            if nesterov == one:
                direction = _fma(momentum, direction, update)
        before = parameters[i]
        if keep != one:
            before = before * keep
        stepped[i] = _fma(rate, direction, before)


#: Entries of a part: few enough for a core's share of the last cache, enough that threads seldom wait for the
#: interpreter between compiled passes. Two threads at d = 10⁷ take 139, 107, 81, 65, 90, 110 ms with
#: 2¹⁵ to 2²⁰ entries.
_CPU_PART: Final = 1 << 18
_GPU_PART: Final = 1 << 20
_NONE: Final = np.empty(0, np.float32)


class ServerPass:
    """What happens to every entry of a vector as a round is released, part by part on all cores:

        u = (Σ + std·[C⁻¹z]_t)/m, and for a rule of which each entry is for itself also its step.

    Args:
        noise: makes the noise of parts; from `parts_of`.
        size: m, the planned cohort size, in the unit that means are wanted in.
        std: standard deviation of the noise per unit of C⁻¹z; 0 adds none.

    Guarantees:
        The bits do not depend on parts and threads. No argument changes but the position of the noise.
    """

    def __init__(self, noise: BlockedNoise, size: float, std: float) -> None:
        self._noise, self._size, self._std = noise, float(size), std

    @staticmethod
    def part_on(device: torch.device) -> int:
        """Entries of a part."""
        return _CPU_PART if device.type == "cpu" else _GPU_PART

    def mean(self, t: int, total: FixedPointSum, like: Tensor) -> Tensor:
        """u of round t.

        Args:
            t: 0-based round.
            total: Σ.
            like: a vector of the type and on the device that u should have.
        """
        if not _is_plain(like):
            mean = torch.empty_like(like)
            self._each(t, total, lambda part, noisy: mean[part].copy_(noisy.div_(self._size)))
            return mean

        mean = empty_vector(like.numel(), torch.float32)
        values = mean.numpy()
        self._each(t, total, lambda part, noisy: mean_part(noisy.numpy(), self._size, values[part]))
        return mean

    @staticmethod
    def steps(rule: ServerOptimizer, parameters: Tensor) -> TypeGuard[ServerSGD]:
        """Whether `step` can make a rule's step."""
        return isinstance(rule, ServerSGD) and rule.in_parts and _is_plain(parameters)

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

        stepped = empty_vector(parameters.numel(), torch.float32)
        new = {name: empty_vector(value.numel(), torch.float32) for name, value in state.items()}
        velocity, moving = (each["velocity"].numpy() if each else _NONE for each in (state, new))
        before, after = parameters.detach().numpy(), stepped.numpy()

        def work(part: slice, noisy: Tensor) -> None:
            numbers = rule.numbers(t)
            vectors = (vector[part] for vector in (before, velocity, after, moving))
            step_part(noisy.numpy(), self._size, numbers, *vectors)

        self._each(t, total, work)
        return stepped, new

    def _each(self, t: int, total: FixedPointSum, work: Callable[[slice, Tensor], object]) -> None:
        """Do the work on the noisy sum of every part, (its place, its entries in float64)."""
        self._noise.seek(t)
        blocks = list(self._noise.blocks())

        def one(block: tuple[slice, NoiseStream]) -> None:
            part, noise = block
            noisy = total.part(part)
            if self._std > 0:
                noise.add_(noisy, self._std)
            else:
                noise.skip()
            work(part, noisy)

        if total.fixed_point.device.type == "cpu":
            on_all_cores(one, blocks)
            return
        for block in blocks:
            one(block)


def _is_plain(vector: Tensor) -> bool:
    """Whether compiled passes are for it."""
    return vector.device.type == "cpu" and vector.dtype == torch.float32
