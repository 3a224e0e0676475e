"""The participation contract."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedmf.participation import Participation


def most_by_enumeration(rounds: int, separation: int) -> int:
    """Size of the largest set of rounds that are pairwise at least ``separation`` apart."""
    return max(
        len(chosen)
        for size in range(1, rounds + 1)
        for chosen in combinations(range(rounds), size)
        if all(j - i >= separation for i, j in combinations(chosen, 2))
    )


@pytest.mark.parametrize("rounds", [1, 5, 8])
@pytest.mark.parametrize("separation", [1, 3, 9])
def test_k_is_allowed_exactly_when_k_participations_fit(rounds: int, separation: int) -> None:
    most = most_by_enumeration(rounds, separation)
    assert Participation.as_many_as_fit(rounds, separation) == Participation(
        rounds, most, separation
    )
    for k in range(1, most + 1):
        assert Participation(rounds, k, separation).max_participations == k
    with pytest.raises(
        ValueError, match=rf"at most k={most} participations fit in {rounds} rounds"
    ) as caught:
        Participation(rounds, most + 1, separation)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None, np.int64(2)])
def test_only_positive_integers(value: object) -> None:
    position = 0 if value is None else 1 + isinstance(value, str | float)
    arguments: list[object] = [10, 2, 3]
    arguments[position] = value
    symbol = ("n (rounds)", "k (max_participations)", "b (min_separation)")[position]
    with pytest.raises(ValueError, match="must be an integer of at least 1; got ") as caught:
        Participation(*arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(symbol)
