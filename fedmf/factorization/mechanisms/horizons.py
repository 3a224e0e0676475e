"""How many rounds a mechanism by name is built for: beyond, a request would take hours or all memory."""

from __future__ import annotations

__all__ = ["LARGEST", "check_horizon", "check_rounds"]

#: n for closed forms and optimised banded Toeplitz matrices, which take minutes there and seconds at 10⁶.
LARGEST = 10_000_000
_NORMALIZED, _LARGEST_NORMALIZED = "normalized-", 65_536  # normalised columns take O(n²)
_LARGEST_OF = {"banded": 65_536, "banded-inverse": 65_536, "blt": 131_072}
# These refuse by themselves, before they allocate anything.
_DENSE = {"dense", "tree", "kary-tree"}


def check_rounds(rounds: int) -> None:
    """Refuse a horizon that no mechanism is built for.

    Raises:
        ValueError: n > 10,000,000.
    """
    if rounds > LARGEST:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST}; got {rounds}. No mechanism is built for more: "
            "plan a shorter run."
        )


def check_horizon(name: str, rounds: int) -> None:
    """Refuse a horizon beyond which this mechanism would take hours.

    Args:
        name: a known name, as on the command line.
        rounds: n.

    Raises:
        ValueError: n is too large for it.

    >>> check_horizon("blt", 10**5)
    """
    check_rounds(rounds)
    base = name.removeprefix(_NORMALIZED)
    limit = LARGEST if base in _DENSE else _LARGEST_OF.get(base, LARGEST)
    if base != name and base not in _DENSE:
        limit = min(limit, _LARGEST_NORMALIZED)
    if rounds > limit:
        raise ValueError(
            f"n (rounds) must be at most {limit} for {name}; got {rounds}. "
            f"Use bisr or banded-toeplitz, which go up to n={LARGEST}."
        )
