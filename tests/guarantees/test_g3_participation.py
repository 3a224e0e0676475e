"""G3: nobody takes part more than k times, within b rounds or twice in one: every pattern for
n <= 8, random histories.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import fedmf
from fedmf.errors import ParticipationViolation
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.participations import Histories
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from guarantees.small import patterns, stream

KEY = NoiseKey.from_seed(1)
CONTRACTS = [(n, k, b) for n in (5, 8) for k in (1, 2, 3) for b in (1, 2, 3, 8) if (k - 1) * b < n]


def name(wish: tuple[int, ...]) -> str:
    return "user " + "-".join(map(str, wish))


def check_every_pattern(folder: Path, n: int, k: int, b: int) -> None:
    """2ⁿ users, one for every set of rounds that somebody may wish for, in one ledger."""
    wishes = [wish for size in range(1, n + 1) for wish in itertools.combinations(range(n), size)]
    allowed = set(patterns(n, k, b))
    got: dict[tuple[int, ...], list[int]] = {wish: [] for wish in wishes}
    path = folder / f"{n}-{k}-{b}.sqlite"
    Ledger.create(path, Participation(n, k, b), {}, KEY)
    with Ledger.open(path, KEY) as ledger:
        ledger.opening()
        for t in range(n):
            asking = {name(wish): wish for wish in wishes if t in wish}
            admitted = [user for user in asking if ledger.histories.admits(user, t)]
            expected = {user for user, wish in asking.items() if (*got[wish], t) in allowed}
            assert set(admitted) == expected
            refused = next((user for user in asking if user not in expected), None)
            if refused is not None:
                with pytest.raises(ParticipationViolation):
                    ledger.commit_round(t, [*admitted, refused])
            if admitted:
                with pytest.raises(ParticipationViolation):
                    ledger.commit_round(t, [*admitted, admitted[0]])
            ledger.commit_round(t, admitted)
            for user in admitted:
                got[asking[user]].append(t)
    with Ledger.open(path, read_only=True) as ledger:
        recorded: dict[str, list[int]] = {}
        for t, key in zip(*ledger.participations(), strict=True):
            recorded.setdefault(ledger.histories.names[key], []).append(int(t))
    assert recorded == {name(wish): rounds for wish, rounds in got.items() if rounds}
    assert {tuple(rounds) for rounds in recorded.values()} >= allowed


def check_random_histories(folder: Path) -> None:
    """Cohorts proposed at random, the ledger closed and opened at random, against the rule in plain
    words.
    """
    rng = np.random.default_rng(2)
    for trial in range(6):
        n = int(rng.integers(10, 40))
        k = int(rng.integers(1, 5))
        b = int(rng.integers(1, 6))
        contract = Participation(
            n, min(k, Participation.as_many_as_fit(n, b).max_participations), b
        )
        path = folder / f"{trial}.sqlite"
        past = dict[str, list[int]]()
        Ledger.create(path, contract, {}, KEY)
        ledger = Ledger.open(path, KEY)
        ledger.opening()
        for t in range(n):
            if rng.random() < 0.2:
                ledger.close()
                ledger = Ledger.open(path, KEY)
                ledger.opening()
            wanted = [f"u{u}" for u in rng.permutation(9)[: rng.integers(0, 9)]]
            may = [
                user
                for user in wanted
                if len(past.get(user, [])) < contract.max_participations
                and (user not in past or t - past[user][-1] >= b)
            ]
            assert [user for user in wanted if ledger.histories.admits(user, t)] == may
            ledger.commit_round(t, may)
            for user in may:
                past.setdefault(user, []).append(t)
        ledger.close()
        with Ledger.open(path, KEY) as ledger:
            assert ledger.released == n


def check_stream(folder: Path) -> None:
    """Rows of 16 users in a random order, the stream closed and opened at random: refused exactly
    where the contract says, at no cost.
    """
    rng = np.random.default_rng(3)
    k = 2
    b = 3
    past: dict[str, list[int]] = {}

    def opened_again() -> fedmf.PrivateStream:
        return stream(folder / "stream", 24, dimension=2, max_participations=k, min_separation=b)

    opened = opened_again()
    for user in map("u{}".format, rng.integers(0, 16, 200)):
        t = opened.t
        if t == 24:
            break
        if rng.random() < 0.3:
            opened.close()
            opened = opened_again()
        rounds = past.setdefault(user, [])
        if len(rounds) < k and (not rounds or t - rounds[-1] >= b):
            assert opened.push([0.1, 0.2], user=user).t == t + 1
            rounds.append(t)
        else:
            with pytest.raises(ParticipationViolation):
                opened.push([0.1, 0.2], user=user)
            assert opened.t == t
    opened.close()
    assert sum(map(len, past.values())) == 24


@pytest.mark.parametrize(("n", "k", "b"), CONTRACTS)
def test_every_pattern_of_a_short_run(n: int, k: int, b: int, tmp_path: Path) -> None:
    check_every_pattern(tmp_path, n, k, b)


def test_random_histories(tmp_path: Path) -> None:
    check_random_histories(tmp_path)


def test_users_of_a_stream(tmp_path: Path) -> None:
    check_stream(tmp_path)


@pytest.mark.parametrize("least", ["k + 1", "b - 1"])
def test_one_participation_too_many_is_seen(
    least: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lax(self: Histories, last: int, count: int, time: int) -> object:
        most = self._contract.max_participations
        apart = self._contract.min_separation
        if least == "k + 1":
            return (time - last < apart) | (count >= most + 1)
        return (time - last < apart - 1) | (count >= most)

    monkeypatch.setattr(Histories, "_refuses", lax)
    for check in (
        check_random_histories,
        check_stream,
        lambda folder: check_every_pattern(folder, 8, 2, 3),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(tmp_path)
