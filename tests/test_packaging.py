"""What fedmf is installed with: every dependency pinned with digests, licences said, platforms refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.distribution import FIRST_STEP, build, outside, problems
from support.licences import PAGE, PINNED, ROOT, licence_of, pins, rows_of

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = re.compile(r"[A-Za-z0-9._-]+")


def declared_names() -> set[str]:
    extras = DECLARED["optional-dependencies"]
    wanted = [
        *DECLARED["dependencies"],
        *(text for name in ("ray", "data", "report", "lm", "docs", "dev") for text in extras[name]),
    ]
    return {match.group().lower() for text in wanted if (match := NAME.match(text))}


def test_every_dependency_is_pinned_with_digests() -> None:
    entries = re.split(r"\n(?=\S)", PINNED.read_text(encoding="utf-8").strip())
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []
    assert len(entries) == len(pins())
    assert declared_names() <= set(pins())


def test_licences_of_all_pinned_packages_are_said() -> None:
    said = rows_of(PAGE.read_text(encoding="utf-8"))
    assert list(said) == list(pins())
    here = {name: licence for name, at in pins().items() if (licence := licence_of(name, at)) is not None}
    assert {name: said[name] for name in here} == here


def test_no_dependency_is_under_a_licence_that_binds_programs_that_import_it() -> None:
    """LGPL and MPL bind changes of the package itself alone."""
    said = rows_of(PAGE.read_text(encoding="utf-8"))
    assert [name for name, licence in said.items() if re.search(r"(?<!L)GPL", licence)] == []


@pytest.mark.parametrize(
    ("program", "code"), [("import fedmf.records", 1), ("from fedmf.cli import main; main()", 2)]
)
def test_a_platform_without_locks_is_refused_in_a_line(tmp_path: Path, program: str, code: int) -> None:
    windows = (
        "import sys; sys.modules['fcntl'] = None; import subprocess, pathlib, torch, click, typer, rich; "
    )
    if code == 2:
        windows += "from fedmf.cli import main; sys.platform = 'win32'; "
    done = subprocess.run(
        [sys.executable, "-c", windows + program], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert "fedmf needs Linux or macOS: records are locked with fcntl" in last
    assert code == 1 or len(done.stderr.splitlines()) == 1


def test_wheel_and_source_hold_what_they_should_and_work_outside_the_checkout(tmp_path: Path) -> None:
    """Unpacked into an environment of its own, beside the dependencies of this one."""
    wheel, source = build(tmp_path)
    assert problems(wheel, source) == []
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=tmp_path, check=True)
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(paths))
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-c", FIRST_STEP],
        cwd=tmp_path,
        env=outside(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    place, kind = done.stdout.split()
    assert Path(place).is_relative_to(packages)
    assert kind == "exact"
