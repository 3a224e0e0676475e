"""Wheel and source distribution: what is in them, and what a release puts beside them.

python -m tests.support.release.distribution [PYTHON...]

builds both into dist/, twice, since the same source must give the same bytes; writes digests, the bill of
materials and the manual page beside them; has them judged by tools of others; and for each Python (3.12, or a
path) tries them in environments that have nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from fedmf.version import __version__

ROOT = Path(__file__).resolve().parents[3]
UV = str(Path(sys.executable).with_name("uv"))


def build(into: Path, **variables: str) -> tuple[Path, Path]:
    """Wheel and source distribution, made by the build backend of this environment with further variables."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    environment = {**os.environ, **variables}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600, env=environment)
    (wheel,), (source,) = into.glob("fedmf-*.whl"), into.glob("fedmf-*.tar.gz")
    return wheel, source


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {"docs/site/mkdocs.yml", "docs/notebooks/first-federation.ipynb"}
    top = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt"}
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


def main(pythons: list[str]) -> int:
    """Make dist/, and say how it went."""
    from tests.support.release.environments import trials
    from tests.support.release.manual import manual
    from tests.support.release.materials import VALIDATOR, bill

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        built = build(Path(one))
        again = build(Path(other), TZ="Asia/Tokyo")
        if wrong := problems(*built):
            print("\n".join(wrong), file=sys.stderr)
            return 1
        for first, second in zip(built, again, strict=True):
            if digest(first) != digest(second):
                print(f"{first.name} differs between two builds", file=sys.stderr)
                return 1
        place = ROOT / "dist"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        wheel, source = (Path(shutil.copy(path, place)) for path in built)
    stem = place / f"fedmf-{__version__}"
    materials = Path(f"{stem}.cdx.json")
    materials.write_text(bill(digest(wheel)), encoding="utf-8")
    (place / "fedmf.1").write_text(manual(), encoding="utf-8")
    shutil.copy(ROOT / "constraints.txt", f"{stem}-constraints.txt")
    files = sorted(path for path in place.iterdir())
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in files)
    (place / "SHA256SUMS").write_text(sums, encoding="utf-8")
    schema = ["run", "--no-project", "--with", "cyclonedx-python-lib[json-validation]>=9", "python", "-c"]
    for judge in (
        ["tool", "run", "twine", "check", "--strict", str(wheel), str(source)],
        ["tool", "run", "check-wheel-contents", str(wheel)],
        [*schema, VALIDATOR, str(materials)],
    ):
        subprocess.run([UV, *judge], check=True, cwd=place, env=outside())
    print(f"\n{sums}", end="", flush=True)
    return trials(pythons, wheel, source) if pythons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
