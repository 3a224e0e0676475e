"""README and tutorials keep their promises: their commands run, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.child_processes import in_child

from fedmf.cli.app import run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages whose commands are run, in the order in which they are read.
PAGES = [ROOT / "README.md", DOCS / "concepts.md"]
#: Pages that a reader carries out from the top: files, edits, commands.
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a checkout, where nothing else is."""
    monkeypatch.chdir(tmp_path)
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, people in (("rows", range(200)), ("public_test", range(200, 240))):
        draw = np.random.default_rng(people.start)
        rows = pd.DataFrame(
            {"user": np.repeat(people, 10)}
            | {c: draw.uniform(-1, 1, 10 * len(people)) for c in ("speed", "load")}
        )
        rows.assign(label=(rows["speed"] > rows["load"]).astype(int)).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    return tmp_path


def commands(text: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def carry_out(command: str, output: pytest.CaptureFixture[str]) -> None:
    """With few rounds; what Python is told in a fork, which keeps no modules of an app."""
    program, *arguments = shlex.split(command.replace("'num-server-rounds': 12", "'num-server-rounds': 2"))
    if program == "fedmf":
        further = ("--set", "cohorts.rounds=20") if arguments[0] in ("simulate", "sweep") else ()
        assert run([*arguments, *further]) == 0, (command, output.readouterr().err)
    else:
        assert program == "python", command
        code = arguments[1] if arguments[0] == "-c" else Path(arguments[0]).read_text()
        assert in_child(lambda: exec(code, {"__name__": "__main__"})) == 0, command


def edit(block: str) -> None:
    """Lines that are added to files, and taken away, each edit around lines that stay."""
    for part in block.split("--- ")[1:]:
        name, _, lines = part.partition("\n")
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[:1] in kept)
            for kept in ((" ", "-", ""), (" ", "+", ""))
        )
        text = Path(name).read_text()
        assert text.count(before) == 1, before
        Path(name).write_text(text.replace(before, after))


def test_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Each ``$`` line of README and pages as in one sitting, simulations cut to a few rounds."""
    found = [command for page in PAGES for command in commands(page.read_text())]
    assert len(found) >= 3
    for command in dict.fromkeys(found):
        carry_out(command, capsys)


def test_the_code_of_the_readme_runs() -> None:
    names: dict[str, object] = {}
    for language, block in BLOCK.findall((ROOT / "README.md").read_text()):
        if language == "python":
            exec(block.replace("100", "8"), names)
    assert names["result"].statement["rounds_released"] == 8  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_carried_out(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`flwr run` is left to the tests of deployments."""
    for language, block in BLOCK.findall(page.read_text()):
        if language == "diff":
            edit(block)
        elif language == "console":
            for command in commands(block):
                if "flwr run " not in command:
                    carry_out(command, capsys)
        elif found := re.match(r"# (\S+\.\w+)\n", block):
            Path(found[1]).write_text(block.partition("\n")[2])


def test_links_lead_somewhere() -> None:
    lost = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert lost == []
