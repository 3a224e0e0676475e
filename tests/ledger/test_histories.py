"""The rule for (k, b): who is named when it is broken, and a trial that changes nothing (the rule:
G3).
"""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.errors import ParticipationViolation
from fedmf.ledger.participations import Histories
from fedmf.participation import Participation


def test_the_first_refused_user_is_named_with_the_reason() -> None:
    histories = Histories(Participation(20, 2, 3))
    for time, user in ((0, "a"), (3, "a"), (4, "b")):
        histories.record(user, time)
    with pytest.raises(
        ParticipationViolation, match="user 'b' took part in round 4 and may not in round 6"
    ):
        histories.check(6, ["new", "b", "a"])
    with pytest.raises(
        ParticipationViolation, match="user 'a' took part 2 times, last in round 3, and"
    ):
        histories.check(9, ["new", "b", "a"])
    tried = histories.of(["b", "b", "new"])
    tried.record("new", 7)
    assert (tried.names, histories.names) == (["b", "new"], ["a", "b"])


def test_users_of_a_round_are_recorded_as_one_by_one() -> None:
    """Rounds of random users, some of which break the rule, by keys and by ids."""
    rng = np.random.default_rng(1)
    contract = Participation(60, 4, 3)
    together = Histories(contract)
    single = Histories(contract)
    refused = 0
    for time in range(60):
        users = [f"u{u}" for u in rng.permutation(80)[:6]]
        keys, newcomers = together.keys(users)
        ascending = np.sort(np.array(keys, dtype=np.uint32))
        fault = ""
        try:
            single.check(time, sorted(users, key=lambda user: keys[users.index(user)]))
        except ParticipationViolation as error:
            fault = str(error)
        if fault:
            refused += 1
            with pytest.raises(ParticipationViolation) as caught:
                together.record_round(ascending, newcomers, time)
            assert str(caught.value) == fault
        else:
            together.record_round(ascending, newcomers, time)
            for user in users:
                single.record(user, time)
        assert together.names == single.names
        assert together.min_separation == single.min_separation
        for user in single.names:
            assert together.row(user) == single.row(user)
    assert 5 < refused < 55
    assert together.participations == single.participations
    assert together.max_participations == single.max_participations
