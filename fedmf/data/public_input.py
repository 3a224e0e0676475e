"""What a run takes as known to everybody, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublicInput:
    """Something that is fixed, or declared, before any user's rows are read, so that noise need not hide it.

    Args:
        name: what it is.
        value: its value, or how it is made.
        source: where it comes from; if that is the data themselves, this says so.
    """

    name: str
    value: str
    source: str


def in_words(shape: tuple[int, ...]) -> str:
    """A shape as text, such as 1×28×28."""
    return "×".join(map(str, shape))
