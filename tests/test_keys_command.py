"""`fedmf keys`: what a configuration may say, found by words."""

from __future__ import annotations

import pytest

from fedmf.cli.app import run
from fedmf.runs.tables import keys


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
