"""README and tutorials keep their promises: their commands run, their links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmf
from fedmf.cli.app import run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages whose commands are run, in the order in which they are read.
PAGES = [ROOT / "README.md", DOCS / "concepts.md"]
#: What is replaced in each notebook, so that it runs in seconds.
TUTORIALS = {
    "compare-mechanisms": ("120, [0, 1, 2], [0.025, 0.05, 0.1, 0.2, 0.4]", "30, [0, 1], [0.1]"),
    "make-an-app-private": ("ROUNDS = 12", "ROUNDS = 4"),
    "release-a-stream": ("", ""),
    "score-anomalies": ("", ""),
}
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
    program, *arguments = shlex.split(command)
    assert program == "fedmf", command
    further = ("--set", "cohorts.rounds=20") if arguments[0] == "simulate" else ()
    assert run([*arguments, *further]) == 0, (command, output.readouterr().err)


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


@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "tutorials").iterdir()))
def test_a_tutorial_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell in order, as a kernel runs them, but in this process, which has torch loaded."""
    names: dict[str, Any] = {}
    for cell in json.loads((DOCS / f"tutorials/{name}.ipynb").read_text())["cells"]:
        source = "".join(cell["source"]).replace(*TUTORIALS[name])
        if source.startswith("%%writefile "):
            first, _, content = source.partition("\n")
            Path(first.split()[1]).write_text(content)
        elif source.startswith("!"):
            carry_out(source[1:], capsys)
        elif cell["cell_type"] == "code":
            exec(source, names)


def test_links_lead_somewhere() -> None:
    pages = (
        *ROOT.glob("*.md"),
        ROOT / ".github/SECURITY.md",
        *DOCS.rglob("*.md"),
        *DOCS.rglob("*.ipynb"),
    )
    lost = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert lost == []


def test_the_core_names_files_that_there_are() -> None:
    page = (DOCS / "dev/core.md").read_text()
    named = set(re.findall(r"`((?:fedmf|tests|simulations)/[\w/]+\.py)`", page))
    assert len(named) > 60
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_the_glossary_names_code_that_exists() -> None:
    page = (DOCS / "dev/glossary.md").read_text()
    rows = re.findall(r"`(\w+)` \| `([\w/]+\.py)` \|$", page, re.MULTILINE)
    assert len(rows) >= 40
    lost = []
    for name, file in rows:
        if not re.search(rf"\b{name}\b", (ROOT / "fedmf" / file).read_text()):
            lost.append((name, file))
    assert lost == []


def test_the_table_of_papers_names_code_that_exists() -> None:
    page = (DOCS / "theory/readers_table.md").read_text()
    cells = re.findall(r"`([\w/]+\.py)`(?:: ((?:`[^`]+`(?:, )?)+))?", page)
    assert len(cells) >= 50
    lost = []
    for file, names in cells:
        folder = ROOT if file.startswith("simulations/") else ROOT / "fedmf"
        code = (folder / file).read_text()
        for name in re.findall(r"`(\w+)", names):
            if not re.search(rf"\b{name}\b", code):
                lost.append((file, name))
    assert lost == []


def docstring_of_test(name: str) -> str:
    """Of a test by its path and function, empty if there is none."""
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node) or ""
    return ""


@pytest.mark.weekly  # 9 s; every push builds the site, too
def test_the_site_builds_and_is_found_by_the_words_of_others(tmp_path: Path) -> None:
    """Without any warning, such as a link that leads nowhere or a parameter that is not one."""
    command = ("mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    configuration = ("--config-file", str(DOCS / "site" / "mkdocs.yml"))
    built = subprocess.run(
        [sys.executable, "-m", *command, *configuration], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    for word in ("PCA", "covariance", "DP-SGD", "FedAvg", "budget", "GDPR"):
        found = [each["location"] for each in index["docs"] if word in each["title"] + each["text"]]
        guides = [page for page in found if "/" not in page]
        assert guides, (word, found)


def test_each_advisory_names_tests_that_name_it() -> None:
    page = (ROOT / ".github/SECURITY.md").read_text()
    advisories = re.findall(r"^### (FEDMF-2026-\d+):", page, re.MULTILINE)
    rows = re.findall(r"^\| (FEDMF-2026-\d+) \|.*\| (.*) \|$", page, re.MULTILINE)
    assert [advisory for advisory, _ in rows] == advisories
    for advisory, tests in rows:
        names = re.findall(r"`(tests/[\w/]+\.py::\w+)`", tests)
        assert names, advisory
        for name in names:
            assert re.search(rf"{advisory}\b", docstring_of_test(name)), (advisory, name)


def test_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == fedmf.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()
