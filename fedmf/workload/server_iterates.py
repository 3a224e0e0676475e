"""Workloads of server optimizers: how the noise of each round enters the models that are released."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmf.workload.schedule import LearningRateSchedule
from fedmf.workload.toeplitz import ToeplitzWorkload, exponential, momentum, prefix, weighted, window


def nesterov(decay: float, rounds: int) -> ToeplitzWorkload:
    """Iterates of SGD with Nesterov's momentum: a(x) = (1 + β − βx)/((1 − x)(1 − βx)).

    v_t = β v_{t−1} + g_t and θ_t = θ_{t−1} + g_t + β v_t, so that a_j = 1 + β(1 − β^{j+1})/(1 − β).

    Args:
        decay: β in [0, 1).
        rounds: n.

    Raises:
        ValueError: a value is out of range.

    >>> nesterov(0.5, 3).coefficients
    array([1.5  , 1.75 , 1.875])
    """
    heavy = momentum(decay, rounds)
    factors = ((1.0, -1.0, 1), (decay, -1.0, 1), (decay / (1 + decay), 1.0, 1))
    return ToeplitzWorkload(f"nesterov:{decay:g}", 1 + decay * heavy.coefficients, factors=factors)


def decaying(decay: float, rounds: int) -> ToeplitzWorkload:
    """Exponentially decaying sums, a_j = β^j, for 0 ≤ β < 1; with β = 0 each round alone.

    >>> decaying(0.5, 3).name, decaying(0.0, 3).name
    ('exponential:0.5', 'window:1')
    """
    return exponential(decay, rounds) if decay > 0 else window(1, rounds)


def with_schedule(workload: ToeplitzWorkload, schedule: LearningRateSchedule) -> ToeplitzWorkload:
    """Rounds weighted by their learning rates, relative to the largest.

    Exact for the last model where the velocity of round t is multiplied by η_t, and for every model without
    momentum or with a constant rate: round i enters θ_n with Σ_{t ≥ i} η_t b_{t−i}, b the differences of a,
    and the weight of column i is that sum over a_{n−1−i} = Σ_{t ≥ i} b_{t−i}. Earlier models see the same
    weight in place of their own, which differs by the change of η over some 1/(1 − β) rounds.

    Args:
        workload: A for a constant rate, n rounds.
        schedule: η over the same n rounds.

    Raises:
        ValueError: the horizons differ.

    >>> from fedmf.workload import prefix
    >>> with_schedule(prefix(4), LearningRateSchedule("linear", 0.1, 4)).column_weights
    array([1.  , 0.75, 0.5 , 0.25])
    """
    n = workload.rounds
    if schedule.rounds != n:
        raise ValueError(f"n (rounds) must be {n} for the schedule too; got {schedule.rounds}.")
    if schedule.kind == "constant" and schedule.warmup == 0:
        return workload
    rates = np.array([schedule(t) for t in range(n)]) / schedule.peak
    steps = np.diff(workload.coefficients, prepend=0.0)
    reached = np.convolve(rates[::-1], steps)[:n][::-1]
    made = weighted(workload, columns=reached / workload.coefficients[::-1])
    name = f"{workload.name}*{schedule.kind}" + (f":{schedule.warmup}" if schedule.warmup else "")
    return replace(made, name=name)


def iterates(
    schedule: LearningRateSchedule,
    momentum_decay: float = 0.0,
    use_nesterov: bool = False,
    weight_decay: float = 0.0,
) -> ToeplitzWorkload:
    """What a server optimizer releases, as far as it is linear in the updates.

    For SGD with momentum it is exact as `with_schedule` says. For an adaptive rule v is taken as fixed and
    the correction of m for its start is left out. Weight decay w becomes the factor 1 − η̄w with the mean
    rate η̄; with Nesterov's momentum it is left out.

    Args:
        schedule: η over n rounds.
        momentum_decay: β or β₁.
        use_nesterov: whether the momentum is Nesterov's.
        weight_decay: w, decoupled.

    >>> iterates(LearningRateSchedule("constant", 0.1, 8), 0.9).name
    'momentum:0.9'
    >>> iterates(LearningRateSchedule("cosine", 0.1, 8)).name
    'prefix*cosine'
    """
    n = schedule.rounds
    if use_nesterov:
        return with_schedule(nesterov(momentum_decay, n), schedule)
    if momentum_decay == weight_decay == 0:
        return with_schedule(prefix(n), schedule)
    mean_rate = sum(schedule(t) for t in range(n)) / n
    return with_schedule(momentum(momentum_decay, n, 1 - mean_rate * weight_decay), schedule)
