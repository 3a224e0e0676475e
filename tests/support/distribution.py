"""Wheel and source distribution: what is in them, and that they work where nothing of the checkout is.

python -m tests.support.distribution [PYTHON...]

builds both into dist/, checks their contents, and for each Python (3.12, or a path) installs the wheel in an
environment of its own, with all that it needs from package indexes, and uses it outside the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from fedmf.version import __version__

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).with_name("uv"))
#: What somebody does first with an installed fedmf; the folder it runs in is empty.
FIRST_STEP = """
import fedmf
print(fedmf.__file__)
print(fedmf.design(fedmf.Participation(64, 4, 16), ["cgd"], epsilon=8.0, delta=1e-5)[0]["sensitivity_kind"])
"""
SECOND_STEP = """
import tempfile
import fedmf
run = fedmf.Run(
    task=fedmf.Classification(fedmf.Digits(users=20), fedmf.Mlp(hidden_units=(8,))),
    cohorts=fedmf.CyclicCohorts(rounds=4, size=10),
    privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3),
)
print(fedmf.simulate(run, tempfile.mkdtemp() + "/run").statement.render_text().splitlines()[0])
"""


def build(into: Path) -> tuple[Path, Path]:
    """Wheel and source distribution, made by the build backend of this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (wheel,), (source,) = into.glob("fedmf-*.whl"), into.glob("fedmf-*.tar.gz")
    return wheel, source


def wheel_contents(wheel: Path) -> tuple[set[str], Message]:
    """Names of its files, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"fedmf-{__version__}.dist-info/METADATA")
    return names, message_from_bytes(metadata)


def source_contents(source: Path) -> set[str]:
    """Names of its files, without the folder they are in."""
    with tarfile.open(source) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def problems(wheel: Path, source: Path) -> list[str]:
    """What is wrong with them, in lines; nothing if they may be published."""
    names, metadata = wheel_contents(wheel)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedmf").rglob("*.py")}
    text = str(metadata.get_payload())
    pages = {f"docs/{name}" for name in ("start.md", "site/mkdocs.yml", "notebooks/first-federation.ipynb")}
    top = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    sources = {"configs/digits.toml", "tests/conftest.py", *top, *pages, *modules}
    found = {
        "the wheel lacks": {"fedmf/py.typed", *modules} - names,
        "the wheel has what is not the package's": {
            name for name in names if not re.match(rf"fedmf/|fedmf-{__version__}\.dist-info/", name)
        },
        "neither may have": {
            name
            for name in names | source_contents(source)
            if re.search(r"__pycache__|\.pyc$|noise\.key|/\.", name)
        },
        "the source lacks": sources - source_contents(source),
        "metadata differ": {
            name
            for name, value in {
                "Version": __version__,
                "Requires-Python": ">=3.11",
                "License-Expression": "Apache-2.0",
                "Description-Content-Type": "text/markdown",
            }.items()
            if metadata[name] != value
        },
        "the description lacks": {word for word in ("# fedmf", "## Install") if word not in text},
        "the file of the licence is missing": {"LICENSE"} - {Path(name).name for name in names},
    }
    return [f"{what}: {', '.join(sorted(names)[:5])}" for what, names in found.items() if names]


def outside() -> dict[str, str]:
    """The environment variables without what leads back into the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def try_in(python: str, wheel: Path) -> str:
    """Install the wheel for a version of Python with everything from indexes, use it, and say how it went."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        run: dict[str, Any] = {"check": True, "cwd": folder, "timeout": 1800, "env": outside()}
        subprocess.run([UV, "venv", "--quiet", "--python", python, "env"], **run)
        install = [UV, "pip", "install", "--quiet", "--python", "env"]
        subprocess.run([*install, f"fedmf[data,report] @ {wheel.as_uri()}"], **run)
        installed = time.monotonic() - begun
        for command in (["python", "-c", FIRST_STEP], ["python", "-c", SECOND_STEP], ["fedmf", "--version"]):
            subprocess.run([f"{folder}/env/bin/{command[0]}", *command[1:]], **run)
        return f"Python {python}: installed in {installed:.0f} s, works"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        built = build(Path(made))
        if wrong := problems(*built):
            sys.exit("\n".join(wrong))
        subprocess.run([UV, "tool", "run", "twine", "check", "--strict", *map(str, built)], check=True)
        for version in sys.argv[1:]:
            print(try_in(version, built[0]), flush=True)
        for path in built:
            (ROOT / "dist").mkdir(exist_ok=True)
            path.replace(ROOT / "dist" / path.name)
            print(f"dist/{path.name}")
