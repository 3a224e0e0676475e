"""Ledger, claims of users and stream state against models in plain Python, through random histories."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from support.fuzzing import fuzzed, judged
from support.ledgers import begin, go_on
from support.streams import BUDGET, releases, sample

from fedmf.errors import ParticipationViolation
from fedmf.flower.boundary import Claims
from fedmf.participation import Participation
from fedmf.records import Ledger
from fedmf.streaming.session import open_run
from fedmf.streaming.settings import Settings

USERS = ("ann", "bob", "eve", "mia")


class LedgerMachine(RuleBasedStateMachine):
    """A round is released once, in turn, within the contract, and what was committed never changes."""

    @initialize(n=st.integers(1, 6), b=st.integers(1, 3))
    def begin(self, n: int, b: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.contract = Participation(n, max(1, -(-n // b) - 1), b)
        self.ledger = begin(self.folder / "ledger.sqlite", self.contract, {"n": n})
        self.rounds: list[tuple[str, list[str]]] = []

    def allowed(self, t: int, users: list[str]) -> bool:
        if t != len(self.rounds) or t >= self.contract.rounds or len(set(users)) < len(users):
            return False
        for user in users:
            joined = [s for s, (_, cohort) in enumerate(self.rounds) if user in cohort]
            if len(joined) >= self.contract.max_participations:
                return False
            if joined and t - joined[-1] < self.contract.min_separation:
                return False
        return True

    @rule(ahead=st.sampled_from([0, 0, 0, 0, -1, 1]), users=st.lists(st.sampled_from(USERS), max_size=3))
    def commit(self, ahead: int, users: list[str]) -> None:
        t = len(self.rounds) + ahead
        done = judged(
            lambda: self.ledger.commit_round(t, users, f"model {t} of {users}", "d") or True,
            ParticipationViolation,
        )
        assert bool(done) == self.allowed(t, users)
        if done:
            self.rounds.append((f"model {t} of {users}", users))

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = go_on(self.folder / "ledger.sqlite")

    @rule()
    def look_from_elsewhere(self) -> None:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as other:
            self.agree(other)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "ledger"):
            self.agree(self.ledger)

    def agree(self, ledger: Ledger) -> None:
        last = ledger.checkpoint()
        assert last == ((len(self.rounds) - 1, self.rounds[-1][0], "d") if self.rounds else None)
        met = list(dict.fromkeys(user for _, users in self.rounds for user in users))
        for t, (_, users) in enumerate(self.rounds):
            assert ledger.participants(t) == sorted(users, key=met.index)
        gaps = [
            later - earlier
            for user in met
            for earlier, later in pairwise(t for t, (_, users) in enumerate(self.rounds) if user in users)
        ]
        assert ledger.replay().min_separation == min(gaps, default=None)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)


class ClaimsMachine(RuleBasedStateMachine):
    """Who serves a user keeps it while it lives and gets it back; only nodes that claimed a user serve it."""

    nodes = Bundle("nodes")
    count = 5

    @initialize()
    def begin(self) -> None:
        self.claims, self.alive, self.names = Claims(self.count), set[int](), 0
        self.claimed: dict[int, set[int]] = {user: set() for user in range(self.count)}
        self.pending: dict[int, set[int]] = {user: set() for user in range(self.count)}
        self.accepted: dict[int, list[int]] = {user: [] for user in range(self.count)}

    @rule(target=nodes)
    def make(self) -> int:
        self.names += 1
        return 2**63 + self.names

    @rule(
        joining=st.lists(st.tuples(nodes, st.sets(st.integers(0, 4), max_size=3)), max_size=3),
        leaving=st.lists(nodes, max_size=2),
    )
    def handshake(self, joining: list[tuple[int, set[int]]], leaving: list[int]) -> None:
        """Some nodes come or claim more, some leave."""
        claims = {node: users for node, users in joining if node not in leaving}
        self.alive = (self.alive | set(claims)) - set(leaving)
        given = [(node, np.array(sorted(users), dtype=np.int64)) for node, users in claims.items()]
        waiting = self.claims.update(self.alive, given)
        for node, users in claims.items():
            for user in users:
                self.claimed[user].add(node)
        for user, accepted in self.accepted.items():
            now = self.claims.node_of(user)
            living = [node for node in accepted if node in self.alive]
            newly = [node for node, users in claims.items() if user in users]
            if living:
                assert now == living[0]  # sticky
            elif now is not None:
                assert now in self.alive & self.claimed[user]
                accepted.append(now)
            elif newly:
                assert user in self.claims.disputed
            pending = self.pending[user] & self.alive
            self.pending[user] = (pending | set(newly)) - set(accepted)
            if len(newly) > 1 and not living:
                assert now is None
            assert user not in waiting or now not in newly or now in living

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "claims"):
            free = [user for user in range(self.count) if not self.accepted[user] and not self.pending[user]]
            assert self.claims.unclaimed == len(free)
            assert all(self.claims.node_of(user) is None for user in self.claims.disputed)


class StreamMachine(RuleBasedStateMachine):
    """However a stream is fed, in whatever pieces and with whatever stops, no row counts twice."""

    n = 8

    @initialize(every=st.integers(1, 3), users=st.booleans())
    def begin(self, every: int, users: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.x, self.given = sample(12, 2), 0
        self.names = [f"u{i % 3}" for i in range(12)] if users else None
        more: dict[str, Any] = (
            {"user_column": "user", "max_participations": 2, "min_separation": 3} if users else {}
        )
        self.settings = Settings(
            **BUDGET, rounds=self.n, every=every, workloads=("prefix",), **(more if users else {})
        )
        self.step, self.taken = 0, list[int]()
        self.last: dict[str, list[int]] = {}

    def expect(self, row: int) -> None:
        """What the contract says of a row, in the plainest way."""
        if self.step == self.n:
            return
        if self.names is not None:
            steps = self.last.setdefault(self.names[row], [])
            if len(steps) == 2 or (steps and self.step + 1 - steps[-1] < 3):
                return
            steps.append(self.step + 1)
        self.step += 1
        self.taken.append(row)

    @rule(rows=st.integers(1, 5), whole=st.booleans(), conclude=st.booleans())
    def feed(self, rows: int, whole: bool, conclude: bool) -> None:
        until = min(12, self.given + rows)
        first = 1 if whole or not self.given else self.given + 1
        lines = [",".join(map(repr, row)) for row in self.x[first - 1 : until].tolist()]
        head = "x,y"
        if self.names is not None:
            head += ",user"
            lines = [
                f"{line},{name}" for line, name in zip(lines, self.names[first - 1 : until], strict=True)
            ]
        if not lines:
            return
        source = self.folder / "rows.csv"
        source.write_text("\n".join([head, *lines]) + "\n")
        with open_run(
            self.folder / "state", self.settings, source, self.folder / "out.jsonl", first_row=first
        ) as (run, reader):
            run.feed(reader, count_late=True)
            if conclude:
                run.conclude()
            position = run.position
        for row in range(self.given, until):
            self.expect(row)
        self.given = until
        assert (position.row, position.step) == (until, self.step)
        every = self.settings.every
        due = [t for t in range(1, self.step + 1) if t % every == 0 or t == self.n]
        assert [release["t"] for release in releases(self.folder / "out.jsonl")] == due
        assert position.records == len(due)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


LedgerMachine.TestCase.settings = fuzzed(12)
ClaimsMachine.TestCase.settings = fuzzed(80)
StreamMachine.TestCase.settings = settings(fuzzed(6), stateful_step_count=8)
TestLedger = LedgerMachine.TestCase
TestClaims = ClaimsMachine.TestCase
TestStream = StreamMachine.TestCase
