"""The README keeps its promises: commands run, the table is the script's, links lead somewhere."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedmf.cli.app import run
from fedmf.sweeps import Sweep, load_sweep

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
#: Pages whose commands are run, in the order in which they are read.
HOW_TO = ("start", "choose", "read-a-statement")


def test_the_table_is_what_the_sweep_wrote() -> None:
    block = re.search(r"<!-- compare_mechanisms -->\n(.*?)\n<!-- /compare_mechanisms -->", README, re.DOTALL)
    assert block is not None
    assert block[1].strip() == (PROJECT / "docs/results/compare_mechanisms.md").read_text().strip()


def test_optimizers_are_compared_over_ten_seeds_at_rates_inside_their_lists() -> None:
    """What docs/jme-adam.md says in numbers is what the shipped sweep gave."""
    found = json.loads((PROJECT / "docs/results/jme-adam.json").read_text())
    sweep = load_sweep(PROJECT / "configs/sweeps/jme-adam.toml")
    assert isinstance(sweep, Sweep)
    assert found["warnings"] == found["failures"] == []
    assert [cell["variant"] for cell in found["cells"]] == [cell.variant for cell in sweep.cells]
    rates = next(iter(sweep.tuned.values()))
    page = (PROJECT / "docs/jme-adam.md").read_text()
    for cell in found["cells"]:
        assert len(cell["values"]) == 10
        (rate,) = cell["tuned"].values()
        assert min(rates) < rate < max(rates)
        assert f"{100 * cell['mean']['estimate']:.1f}" in page, cell["variant"]


def test_the_first_screen_has_the_result_and_the_two_commands() -> None:
    first = "\n".join(README.splitlines()[:40])
    for words in ("make run", "make test", "differential privacy", "accuracy"):
        assert words in first
    makefile = (PROJECT / "Makefile").read_text()
    assert re.search(r"^run:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)


def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ``$`` line of README and how-to pages as in one sitting, simulations cut to a few rounds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    pages = [README, *((PROJECT / f"docs/{name}.md").read_text() for name in HOW_TO)]
    found = [re.findall(r"^\$ (.*)$", page, re.MULTILINE) for page in pages]
    assert [len(commands) for commands in found] >= [6, 4, 1, 2]
    for command in dict.fromkeys(command for commands in found for command in commands):
        program, *arguments = shlex.split(command)
        if program == "python":
            subprocess.run([sys.executable, *arguments], check=True, timeout=600)
            continue
        assert program == "fedmf"
        short = ["--set", "cohorts.rounds=20"] if arguments[0] == "simulate" else []
        assert run([*arguments, *short]) == 0, (command, capsys.readouterr().err)


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(PROJECT)) for p in sorted((PROJECT / "docs").rglob("*.md")))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (PROJECT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert ((PROJECT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", ["coverage", "reliability"])
def test_tests_and_scripts_named_in_tables_exist(page: str) -> None:
    text = (PROJECT / f"docs/project/{page}.md").read_text()
    for name in re.findall(r"`((?:tests|simulations)/[^` ]+)`", text):
        assert (PROJECT / name).exists(), name


def test_every_fault_of_the_reliability_page_names_its_test_or_script() -> None:
    text = (PROJECT / "docs/project/reliability.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    faults = [row for row in rows if row[0] != "| fault"]
    assert len(faults) >= 70
    for row in faults:
        assert len(row) == 4, row
        tried = not row[1].startswith("not ")
        assert not tried or re.search(r"`(?:tests|simulations)/|^same", row[3]), row
