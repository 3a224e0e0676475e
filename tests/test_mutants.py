"""The list of small faults: each stands in the package as it is, or says why not."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import file_of, not_copied
from tests.mutants.mutant import ROOT, VERDICTS, Mutant, kept

MUTANTS = kept()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_fits_the_tree_or_is_gone(mutant: Mutant) -> None:
    path = ROOT / mutant.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    faulty = mutant.applied(source) if source else None
    assert (faulty is None) == bool(mutant.gone), "move it to where its code went, or say why it is gone"
    if faulty is not None:
        assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(source))
    assert not mutant.caught or Path(ROOT / mutant.caught).is_file(), "judge it again: its test is gone"


def test_names_are_unique_and_verdicts_known() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert set(Counter(mutant.verdict for mutant in MUTANTS)) <= set(VERDICTS)


def test_a_copy_holds_folders_of_the_package_whatever_they_are_called() -> None:
    assert not_copied(str(ROOT), ["fedmf", "outputs"]) == {"outputs"}
    assert not not_copied(str(ROOT / "fedmf" / "streaming"), ["outputs", "state"])


@pytest.mark.parametrize(
    ("said", "file"),
    [
        ("FAILED tests/noise/test_noise_key.py::test_a[b/c.py] - x", "tests/noise/test_noise_key.py"),
        ("FAILED fedmf/noise/schedule.py::fedmf.noise.schedule.KeySchedule", "fedmf/noise/schedule.py"),
        ('File "/tmp/mutants-x/0/tree/tests/test_lines.py", line 3 in test_a', "tests/test_lines.py"),
        ("", ""),
    ],
)
def test_the_file_that_noticed_a_fault_is_read_from_what_pytest_says(said: str, file: str) -> None:
    assert file_of(said) == file
