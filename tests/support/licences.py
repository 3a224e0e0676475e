"""docs/project/licences.md: what fedmf is installed with, and under which licence each package comes.

python -m tests.support.licences
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINNED, PAGE = ROOT / "constraints.txt", ROOT / "docs" / "project" / "licences.md"
HEAD = """# Licences of dependencies

*For whoever passes fedmf and its dependencies on.*

fedmf itself is under Apache-2.0. `make pins` writes this page from the metadata of the packages that
`constraints.txt` pins; versions and digests of their files are there. They are installed beside fedmf, and
none of their code is in it. What a CUDA build of torch brings along is not listed: NVIDIA's libraries have a
licence of their own, triton has MIT.

| package | licence |
|---|---|
"""


def pins() -> dict[str, str]:
    """Names in constraints.txt, in order, as package indexes write them, and versions."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", PINNED.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): pinned for name, pinned in found}


def licence_of(name: str, pinned: str) -> str | None:
    """What a package says of itself in a few words; None if it is not installed here in this version."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return None
    if said["Version"].partition("+")[0] != pinned:
        return None
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in said.get_all("Classifier", [])
        if entry.startswith("License ::") and not entry.endswith("OSI Approved")
    ]
    written = (said.get("License") or "").strip().splitlines()
    short = written[:1] if written and len(written[0]) <= 60 else []
    return said.get("License-Expression") or " and ".join(classified) or " ".join(short) or "see its files"


def page() -> str:
    """The page; a package that is not installed here keeps the row that it has."""
    rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    said = {name: licence_of(name, at) or rows.get(name, "see its files") for name, at in pins().items()}
    return HEAD + "".join(f"| {name} | {licence} |\n" for name, licence in said.items())


def rows_of(text: str) -> dict[str, str]:
    """Package and licence of each row."""
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", text.partition("|---|---|\n")[2], re.MULTILINE))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
