"""A part of `ServerSGD.step`, compiled: one pass from the noisy sum to model and velocity."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled, fused_multiply_add

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
def step_part(noisy, size, rule, parameters, velocity, stepped, moving):
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
