"""Time for grids in the process of a test."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass
class OwnTime:
    """Moved by waiting alone, in no time: on a slow machine nobody is later than on a fast one."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> OwnTime:
    """The time of all that waits for nodes and their replies."""
    clock = OwnTime()
    for module in ("served_users", "identity", "pulling", "clients"):
        monkeypatch.setattr(f"fedmf.flower.{module}.time", clock)
    return clock
