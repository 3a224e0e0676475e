"""What fedmf is installed with: every dependency pinned with digests, licences said, platforms refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.licences import PAGE, PINNED, ROOT, licence_of, pins, rows_of
from support.release.distribution import build, digest, outside, problems
from support.release.environments import FIRST_STEP
from support.release.manual import manual
from support.release.materials import bill

from fedmf.cli.app import program
from fedmf.version import __version__

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
    again = build(tmp_path / "again", TZ="Asia/Tokyo")
    assert [digest(path) for path in again] == [digest(wheel), digest(source)]
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


def test_every_file_of_a_release_names_the_same_version() -> None:
    assert DECLARED["version"] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "release-notes" / f"{__version__}.md").is_file()


def test_the_bill_of_materials_has_every_pin_with_its_licence() -> None:
    made = json.loads(bill("0" * 64))
    listed = {entry["name"]: entry for entry in made["components"]}
    assert {name: entry["version"] for name, entry in listed.items()} == pins()
    assert all(entry["licenses"] for entry in listed.values())
    assert {"torch", "numpy", "typing-extensions"} <= {
        name for name, entry in listed.items() if entry["scope"] == "required"
    }
    assert listed["pytest"]["scope"] == "optional"
    known = {entry["bom-ref"] for entry in made["components"]}
    assert all(set(entry["dependsOn"]) <= known for entry in made["dependencies"])
    assert made["metadata"]["component"]["version"] == __version__
    assert bill("0" * 64) == json.dumps(made, indent=1) + "\n"
    assert json.loads(bill("1" * 64))["serialNumber"] != made["serialNumber"]


def test_the_manual_page_has_every_command_and_option() -> None:
    page = manual()
    for name, command in program().commands.items():  # type: ignore[attr-defined]
        assert f".SS fedmf {name}" in page
        for option in command.params:
            assert all(long.replace("-", r"\-") in page for long in option.opts if long.startswith("--"))
    assert [line for line in page.splitlines() if re.match(r"[.'](?!TH|SH|SS|TP|PP|nh|ad)", line)] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_manual_page_is_laid_out_without_a_warning() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-Kutf8"],
        input=manual(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "or 143 a signal" in done.stdout
