"""Trails of the documentation: files are written, edits made and commands run, as they stand on the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.flower_network import flower_environment, flwr_run_simulation
from support.release.trails import BLOCK, READERS, commands, edit, steps, write

from fedmf.cli.app import run

DOCS = Path(__file__).parents[1] / "docs"
TRAILS = sorted((DOCS / "trails").glob("*.md"))
README = (DOCS.parent / "README.md").read_text()
#: A page of print has some 500 words; ten of them with tables and code are fewer.
_MOST_WORDS = 1_500


def carry_out(command: str, output: pytest.CaptureFixture[str]) -> str:
    """What a command prints; it succeeds."""
    program, *arguments = shlex.split(command)
    if program == "fedmf":
        assert run(arguments) == 0, (command, output.readouterr().err)
        return output.readouterr().out
    program = sys.executable if program == "python" else program
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def walk(page: str, output: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What each command of a page prints, in a folder of its own; ``flwr`` is left to its own test."""
    printed = {}
    for language, block in BLOCK.findall((DOCS / "trails" / f"{page}.md").read_text()):
        if language == "diff":
            edit(block)
        elif language == "console":
            here = [command for command in commands(block) if "flwr run " not in command]
            printed |= {command: carry_out(command, output) for command in here}
        else:
            write(block)
    return printed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a checkout, where nothing else is."""
    monkeypatch.chdir(tmp_path)
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(DOCS.parent / name)
    return tmp_path


def test_there_are_three_and_each_is_short_and_begins_with_the_install() -> None:
    assert len(TRAILS) == 3
    for path in TRAILS:
        page = path.read_text()
        assert len(page.split()) <= _MOST_WORDS, path
        installs = re.findall(r"^    (pip install .*)$", page, re.MULTILINE)
        assert installs[:2] == [
            found.split("  ")[0] for found in re.findall(r"^    (pip .*)$", README, re.MULTILINE)
        ]
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_block_of_a_trail_is_carried_out() -> None:
    """Code that is neither written to a file nor run would be passed over in silence."""
    for path in TRAILS:
        page = path.read_text()
        assert page.count("\n```") == 2 * len(BLOCK.findall(page))
        for language, block in BLOCK.findall(page):
            if language == "console":
                assert len(commands(block)) == len(block.splitlines()), block
            elif language == "diff":
                assert block.startswith("--- "), block
            else:
                assert re.match(r"# \S+\.\w+\n", block), block


def test_a_readers_own_rows_fit_the_page() -> None:
    """What `make trails` puts in place of the page's rows has its place there still."""
    assert {path.stem for path in TRAILS} == {*READERS}
    for path in TRAILS:
        page = path.read_text()
        files, words = READERS[path.stem]
        assert all(said in page for said in words)
        done = [text for _, text in steps(path.stem, page, "fedmf.whl")]
        assert all(any(content in text for text in done) for content in files.values())
        assert sum("fedmf.whl[" in text for text in done) == page.count("    pip install '.[")


def test_compare_mechanisms(pictures: None, capsys: pytest.CaptureFixture[str]) -> None:
    printed = walk("compare-mechanisms", capsys)
    table = Path("sweeps/mine/table.md").read_text()
    assert [row.split(" | ")[1] for row in table.splitlines()[2:]] == [
        "independent",
        "cgd",
        "banded-toeplitz",
    ]
    for name in ("design.png", "sweeps/mine/comparison.png", "comparison.html"):
        assert Path(name).stat().st_size > 5_000, name
    assert "Every user has (2, 1e-05)" in printed["fedmf account runs/banded"]


def test_release_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    printed = walk("release-a-stream", capsys)
    rows = [line.split()[0] for line in printed["python read.py"].splitlines()]
    assert rows == ["wait", "temperature", "ward=A"]
    assert "Every user (column `patient`) has (4, 1e-05)" in printed["fedmf account state --full"]
    (designed,) = [text for command, text in printed.items() if command.startswith("fedmf design")]
    stated = re.search(r"noise multiplier +([\d.]+)", printed["fedmf account state --full"])
    assert stated is not None
    assert stated[1][:5] in designed


def test_make_an_app_private(capsys: pytest.CaptureFixture[str]) -> None:
    printed = walk("make-an-app-private", capsys)
    first, private = (text for command, text in printed.items() if "run_app" in command)
    for text, least in ((first, 0.5), (private, 0.4)):
        (accuracies,) = re.findall(r"accuracy \[(.*)\]", text)
        before, *_, after = map(float, accuracies.split(", "))
        assert before < 0.2
        assert after > least
    assert "Every user has (8, 0.001)" in printed["fedmf account runs/app"]
    (verified,) = [text for command, text in printed.items() if command.startswith("fedmf verify")]
    assert "signed with the operator's key" in verified


@pytest.mark.deployment
def test_flwr_run_of_a_private_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's own command, in a Flower home of its own."""
    page = (DOCS / "trails" / "make-an-app-private.md").read_text()
    (command,) = re.findall(r"^\$ (.*flwr run .*)$", page, re.MULTILINE)
    variable, *words = shlex.split(command.replace("$PWD", str(tmp_path)))
    environment = flower_environment(tmp_path)
    assert environment.items() >= {tuple(variable.split("="))}
    assert words[:4] == ["flwr", "run", "my-app", "--stream"]
    blocks = BLOCK.findall(page)
    for line in commands(blocks[0][1])[:2]:
        carry_out(line, capsys)
    edit(next(block for language, block in blocks if language == "diff"))
    config = dict(pair.split("=") for pair in shlex.split(words[words.index("--run-config") + 1]))
    assert config["run-dir"] == str(tmp_path / "runs/flower")
    given = {"num-server-rounds": int(config["num-server-rounds"]), "run-dir": config["run-dir"]}
    done = flwr_run_simulation(tmp_path / "my-app", environment, nodes=40, run_config=given)
    assert done.ok, done.details + done.output[-3000:]
    assert "Every user has (8, 0.001)" in carry_out("fedmf account runs/flower", capsys)
