"""The ledger against the contract written in the plainest Python, on random scripts of rounds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledgers import begin, go_on, participations

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation


def allowed(model: list[list[str]], contract: Participation, users: list[str]) -> bool:
    t = len(model)
    if t >= contract.rounds or len(set(users)) < len(users):
        return False
    for user in users:
        joined = [index for index, cohort in enumerate(model) if user in cohort]
        if len(joined) >= contract.max_participations:
            return False
        if joined and t - joined[-1] < contract.min_separation:
            return False
    return True


contracts = st.builds(
    lambda n, b, spare: Participation(n, max(1, -(-n // b) - spare), b),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 2),
)
cohorts = st.lists(st.sampled_from(["a", "b", "c", "d", "\u00e9", "e\u0301", "名"]), max_size=4)
steps = st.lists(st.one_of(cohorts, st.just("reopen")), max_size=25)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(contract=contracts, script=steps)
def test_agrees_with_a_plain_model(tmp_path_factory, contract, script):
    path = tmp_path_factory.mktemp("model") / "ledger.sqlite"
    ledger = begin(path, contract, {})
    model: list[list[str]] = []
    for step in script:
        if step == "reopen":
            ledger.close()
            ledger = go_on(path)
        elif allowed(model, contract, step):
            ledger.commit_round(len(model), step)
            model.append(step)
        else:
            with pytest.raises(ParticipationViolation):
                ledger.commit_round(len(model), step)
    times, keys = ledger.participations()
    names = ledger.histories.names
    patterns = [[t for t, cohort in enumerate(model) if user in cohort] for user in names]
    assert [times[keys == key].tolist() for key in range(len(names))] == patterns
    assert ledger.released == len(model)
    assert sorted(participations(ledger)) == sorted(
        (t, user) for t, cohort in enumerate(model) for user in cohort
    )
    assert ledger.histories.max_participations == max(map(len, patterns), default=0)
    gaps = [later - earlier for p in patterns for earlier, later in pairwise(p)]
    assert ledger.histories.min_separation == min(gaps, default=None)
    ledger.close()
