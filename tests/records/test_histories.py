"""One rule for (k, b), whether users come one by one or as arrays of keys."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.histories import Histories, UserRow

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


def test_histories_continue_from_their_rows() -> None:
    rng = random.Random(0)
    whole, parts = Histories(CONTRACT), Histories(CONTRACT)
    rows: dict[str, UserRow] = {}
    for time in range(1, 61):
        user = f"u{rng.randint(0, 9)}"
        assert whole.admits(user, time) == parts.admits(user, time)
        if whole.admits(user, time):
            whole.record(user, time)
            parts.record(user, time)
            rows[user] = parts.row(user)
        parts = Histories.from_rows(CONTRACT, rows.values(), parts.min_separation)
    assert parts.min_separation == whole.min_separation
    assert parts.max_participations == whole.max_participations == 3


def test_there_is_room_for_any_number_of_users() -> None:
    histories = Histories(Participation(10, 2, 2))
    for time, size in enumerate((3, 5000, 40_000)):
        keys, newcomers = histories.keys([f"{time}-{i}" for i in range(size)])
        assert len(newcomers) == size
        histories.check(time, keys)
        histories.meet(newcomers)
        histories.record_all(time, keys)
    assert len(histories) == 45_003
    assert (histories.counts == 1).all()
    assert histories.min_separation is None
    with pytest.raises(ParticipationViolation, match=r"user '2-39999' took part in round 2 .* round 3: b"):
        histories.check(3, np.array([0, 45_002]))


def test_the_first_refused_user_is_named_with_the_reason() -> None:
    histories = Histories(Participation(20, 2, 3))
    for time, user in ((0, "a"), (3, "a"), (4, "b")):
        histories.record(user, time)
    keys, _ = histories.keys(["new", "b", "a"])
    with pytest.raises(ParticipationViolation, match="user 'b' took part in round 4 and may not in round 6"):
        histories.check(6, keys)
    with pytest.raises(ParticipationViolation, match="user 'a' took part 2 times, last in round 3, and"):
        histories.check(9, keys)
