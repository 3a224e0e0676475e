"""The rule for (k, b): who is named when it is broken, and a trial that changes nothing (the rule:
G3).
"""

from __future__ import annotations

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
