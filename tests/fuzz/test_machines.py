"""Ledger, claims of users and stream state against models in plain Python, through random histories."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from support.fuzzing import fuzzed

from fedmf.flower.served_users import Claims


class ClaimsMachine(RuleBasedStateMachine):
    """Who serves a user keeps it while it lives and gets it back; only nodes that claimed a user serve it."""

    nodes = Bundle("nodes")
    count = 5

    @initialize()
    def begin(self) -> None:
        self.claims, self.alive, self.names = Claims(), set[int](), 0
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
        given = [(node, {f"u{user}" for user in users}) for node, users in claims.items()]
        waiting = self.claims.update(self.alive, given)
        for node, users in claims.items():
            for user in users:
                self.claimed[user].add(node)
        for user, accepted in self.accepted.items():
            now = self.claims.node_of(f"u{user}")
            living = [node for node in accepted if node in self.alive]
            newly = [node for node, users in claims.items() if user in users]
            if living:
                assert now == living[0]  # sticky
            elif now is not None:
                assert now in self.alive & self.claimed[user]
                accepted.append(now)
            pending = self.pending[user] & self.alive
            self.pending[user] = (pending | set(newly)) - set(accepted)
            if len(newly) > 1 and not living:
                assert now is None
            assert f"u{user}" not in waiting or now not in newly or now in living

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "claims"):
            free = [user for user in range(self.count) if not self.accepted[user] and not self.pending[user]]
            assert self.claims.claimed == self.count - len(free)


ClaimsMachine.TestCase.settings = fuzzed(80)
TestClaims = ClaimsMachine.TestCase
