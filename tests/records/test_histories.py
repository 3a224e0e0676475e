"""The rule for (k, b) against every participation of every user, asked in the plainest way."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.histories import Histories

CONTRACT = Participation(60, 3, 4)


def test_it_agrees_with_a_plain_model() -> None:
    rng, times, histories = random.Random(0), dict[str, list[int]](), Histories(CONTRACT)
    for time in range(60):
        users = rng.sample([f"u{i}" for i in range(12)], rng.randint(0, 4))
        allowed = [
            user
            for user in users
            if len(mine := times.get(user, [])) < 3 and not [past for past in mine if time - past < 4]
        ]
        assert [user for user in users if histories.admits(user, time)] == allowed
        if refused := [user for user in users if user not in allowed]:
            with pytest.raises(ParticipationViolation, match=f"user '{refused[0]}' took part"):
                histories.check(time, users)
        histories.check(time, allowed)
        keys, _ = histories.keys(allowed)
        for user in allowed:
            histories.record(user, time)
            times.setdefault(user, []).append(time)
        assert [histories.names[key] for key in keys] == allowed
    rows = {user: (user, len(mine), mine[-1]) for user, mine in times.items()}
    assert {user: histories.row(user) for user in histories.names} == rows
    assert histories.participations == sum(map(len, times.values()))
    assert histories.max_participations == 3
    assert histories.min_separation == min(b - a for mine in times.values() for a, b in pairwise(mine))


def test_the_first_refused_user_is_named_with_the_reason() -> None:
    histories = Histories(Participation(20, 2, 3))
    for time, user in ((0, "a"), (3, "a"), (4, "b")):
        histories.record(user, time)
    with pytest.raises(ParticipationViolation, match="user 'b' took part in round 4 and may not in round 6"):
        histories.check(6, ["new", "b", "a"])
    with pytest.raises(ParticipationViolation, match="user 'a' took part 2 times, last in round 3, and"):
        histories.check(9, ["new", "b", "a"])
    tried = histories.of(["b", "b", "new"])
    tried.record("new", 7)
    assert (tried.names, histories.names) == (["b", "new"], ["a", "b"])
