"""`fedmf keys`: what a configuration may say, found by words."""

from __future__ import annotations

import pytest

from fedmf.addresses import linked
from fedmf.cli.app import run
from fedmf.runs.tables import keys
from fedmf.runs.tables.configuration import TABLES
from fedmf.runs.tables.value_table import ValueTable, fields_of


def test_all_keys_are_listed_with_type_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys"]) == 0
    said = capsys.readouterr().out
    listed = [line.split("  ")[0] for line in said.splitlines() if not line.startswith(" ")]
    assert listed == [key.dotted for key in keys()]
    assert "privacy.epsilon  (float, default 8.0)\n    ε" in said


def test_every_word_must_be_in_name_or_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "Clip", "norm"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("privacy.clip-norm  (float, default 0.3)\n")
    assert "mechanism.kind" not in said
    assert run(["keys", "xyzzy"]) == 2
    assert capsys.readouterr().err == "fedmf: no key has 'xyzzy' in its name or meaning.\n"


def test_a_key_is_said_of_every_kind_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is for most of them stands alone, and what it is for others with their names."""
    assert run(["keys", "server.epsilon"]) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    assert [line.strip().partition(" ")[0] for line in said] == ["ε", "fedadagrad,"]
    assert run(["keys"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, table in TABLES.items():
        for kind, cls in table.kinds.items() if isinstance(table, ValueTable) else ():
            for key, field in fields_of(cls).items():
                assert " ".join(linked(field.meaning).split()) in said, f"{name}.{key} of kind {kind}"
    assert run(["keys", "adaptivity"]) == 0  # a word of what it is for some kinds
    assert capsys.readouterr().out.startswith("server.epsilon")
