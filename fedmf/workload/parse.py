"""Workloads by name."""

from __future__ import annotations

from collections.abc import Callable

from fedmf.workload.schedule import LearningRateSchedule
from fedmf.workload.server_iterates import nesterov, with_schedule
from fedmf.workload.toeplitz import (
    ToeplitzWorkload,
    average,
    exponential,
    momentum,
    prefix,
    window,
)


def parse_workload(text: str, rounds: int) -> ToeplitzWorkload:
    """The workload of a command-line name.

    Args:
        text: ``prefix``, ``average``, ``exponential:β``, ``window:w``, ``momentum:β`` or ``momentum:β:α``
            with weight decay factor α, or ``nesterov:β``. ``*linear`` or ``*cosine`` behind it, or
            ``*cosine:20`` with 20 rounds of warm-up, weights the rounds by a learning-rate schedule.
        rounds: n.

    Raises:
        ValueError: the name is unknown, its parameter is missing or unreadable, or a value is out of range.

    >>> parse_workload("momentum:0.5", 3).coefficients
    array([1.  , 1.5 , 1.75])
    >>> parse_workload("prefix*linear", 4).column_weights
    array([1.  , 0.75, 0.5 , 0.25])
    """
    base, star, schedule = text.partition("*")
    if star:
        return with_schedule(parse_workload(base, rounds), _parse_schedule(schedule, rounds, text))
    name, *values = text.split(":")
    if name not in _PARSED:
        raise ValueError(f"A (workload) must be one of {_FORMS}; got {text!r}. Check the name.")
    counts, read, make = _PARSED[name]
    if len(values) not in counts:
        raise ValueError(f"A (workload) must be one of {_FORMS}; got {text!r}. Count the values of {name}.")
    try:
        numbers = [read(value) for value in values]
    except ValueError:
        kind = "an integer" if read is int else "a number"
        raise ValueError(f"A (workload) must give {kind} after {name}:; got {text!r}.") from None
    return make(rounds, *numbers)


_PARSED: dict[str, tuple[tuple[int, ...], type, Callable[..., ToeplitzWorkload]]] = {
    "prefix": ((0,), float, prefix),
    "exponential": ((1,), float, lambda n, decay: exponential(decay, n)),
    "window": ((1,), int, lambda n, width: window(width, n)),
    "average": ((0,), float, average),
    "momentum": ((1, 2), float, lambda n, decay, *weight_decay: momentum(decay, n, *weight_decay)),
    "nesterov": ((1,), float, lambda n, decay: nesterov(decay, n)),
}
_FORMS = "prefix, exponential:β, window:w, average, momentum:β[:α], nesterov:β, all with *schedule[:warm-up]"


def _parse_schedule(text: str, rounds: int, whole: str) -> LearningRateSchedule:
    kind, _, warmup = text.partition(":")
    try:
        return LearningRateSchedule(kind, 1.0, rounds, int(warmup or 0))
    except ValueError as error:
        raise ValueError(f"A (workload) {whole!r} has no such schedule: {error}") from None
