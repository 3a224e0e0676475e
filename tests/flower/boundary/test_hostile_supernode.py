"""A few classes of hostile reply through a real SuperLink, beside a real SuperNode that is honest."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "simulations" / "flower" / "hostile_supernode.py"
#: One that only the exact sum sees, one that is not unpacked, one about whose reply it is, one too long.
CLASSES = ["NaN", "a chunk named often", "says another node", "endless reason"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("hostile_supernode", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deployment
def test_hostile_nodes_of_a_superlink_add_nothing_and_cost_nobody_a_reply(script: ModuleType) -> None:
    outcome = script.attack(["none", *CLASSES], rounds=1, honest=1, seed=1)
    assert outcome.ended == ""
    assert outcome.lost == 0
    assert outcome.wrong < 0.01
    rows = {row["class"]: row for row in outcome.rows}
    assert (rows["none"]["refused"], rows["none"]["absent"]) == (0, 0), "a node that is honest is in the sum"
    for name in CLASSES:
        assert (rows[name]["refused"], rows[name]["taken"]) == (1, 0), rows[name]
    assert not outcome.bad
