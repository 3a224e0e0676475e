"""Completion in shells: each gets its script, which completes names of commands and loads nothing heavy."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedmf.cli.app import run

#: Stands for the program ``fedmf``, and fails where it loaded what takes seconds.
PROGRAM = """\
import sys
from fedmf.cli.app import run
try:
    code = run()
finally:
    heavy = {'torch', 'ray', 'flwr', 'pandas', 'scipy', 'numpy', 'dp_accounting'} & set(sys.modules)
    if heavy:
        print("loads", heavy, flush=True)
sys.exit(code)
"""


@pytest.fixture
def fedmf(tmp_path: Path) -> Path:
    """A program of that name in a folder of its own."""
    path = tmp_path / "bin" / "fedmf"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{PROGRAM}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def answered(command: list[str], program: Path, **further: str) -> str:
    """What it prints in an environment with these variables; ``fedmf`` is the program."""
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **further}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(fedmf: Path, shell: str) -> None:
    script = answered([str(fedmf)], fedmf, _FEDMF_COMPLETE=f"source_{shell}")
    assert f"_FEDMF_COMPLETE=complete_{shell}" in script
    assert "loads" not in script


@pytest.mark.parametrize(
    ("shell", "typed"),
    [
        ("bash", {"COMP_WORDS": "fedmf des", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "fedmf des"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "fedmf des", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_names_of_commands_are_completed(fedmf: Path, shell: str, typed: dict[str, str]) -> None:
    found = answered([str(fedmf)], fedmf, _FEDMF_COMPLETE=f"complete_{shell}", **typed)
    assert "design" in found
    assert "stream" not in found
    assert "loads" not in found


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"), [(["des"], "design"), (["stream", "--user-col"], "--user-column")]
)
def test_bash_itself_completes(fedmf: Path, words: list[str], expected: str) -> None:
    """The script in a shell that asks as a terminal does."""
    script = answered([str(fedmf)], fedmf, _FEDMF_COMPLETE="source_bash")
    typed = f"COMP_WORDS=(fedmf {' '.join(words)})\nCOMP_CWORD={len(words)}"
    asked = f'{script}\n{typed}\n_fedmf_completion fedmf\necho "${{COMPREPLY[@]}}"'
    assert answered(["bash", "-c", asked], fedmf).split() == [expected]


def test_the_help_names_completion_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("completion") == 1
    assert "fedmf --install-completion" in shown
