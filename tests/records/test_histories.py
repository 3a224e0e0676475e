"""One rule for (k, b), whether users come one by one or as arrays of keys."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.histories import Histories

CONTRACT = Participation(60, 3, 4)


class Plain:
    """Every participation of every user, asked in the plainest way."""

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}

    def admits(self, user: str, time: int) -> bool:
        times = self.times.get(user, [])
        near = [earlier for earlier in times if time - earlier < CONTRACT.min_separation]
        return not near and len(times) < CONTRACT.max_participations

    def gaps(self) -> list[int]:
        return [b - a for times in self.times.values() for a, b in pairwise(times)]


@pytest.mark.parametrize("seed", range(5))
def test_both_ways_of_asking_agree_with_a_plain_model(seed: int) -> None:
    rng, plain = random.Random(seed), Plain()
    single, joint = Histories(CONTRACT), Histories(CONTRACT)
    for time in range(60):
        users = rng.sample([f"u{i}" for i in range(12)], rng.randint(0, 4))
        allowed = [user for user in users if plain.admits(user, time)]
        assert [user for user in users if single.admits(user, time)] == allowed
        keys, newcomers = joint.keys(users)
        if allowed == users:
            joint.check(time, keys)
        else:
            refused = next(user for user in users if user not in allowed)
            with pytest.raises(ParticipationViolation, match=f"user '{refused}' took part"):
                joint.check(time, keys)
        keys, newcomers = joint.keys(allowed)
        joint.meet(newcomers)
        joint.record_all(time, keys)
        for user in allowed:
            single.record(user, time)
            plain.times.setdefault(user, []).append(time)
    rows = {user: (user, len(times), times[-1]) for user, times in plain.times.items()}
    for histories in (single, joint):
        assert {user: histories.row(user) for user in histories.names} == rows
        assert histories.counts.sum() == sum(map(len, plain.times.values()))
        assert histories.max_participations == max(map(len, plain.times.values())) == 3
        assert histories.min_separation == min(plain.gaps())


def test_the_first_refused_user_is_named_with_the_reason() -> None:
    histories = Histories(Participation(20, 2, 3))
    for time, user in ((0, "a"), (3, "a"), (4, "b")):
        histories.record(user, time)
    keys, _ = histories.keys(["new", "b", "a"])
    with pytest.raises(ParticipationViolation, match="user 'b' took part in round 4 and may not in round 6"):
        histories.check(6, keys)
    with pytest.raises(ParticipationViolation, match="user 'a' took part 2 times, last in round 3, and"):
        histories.check(9, keys)
