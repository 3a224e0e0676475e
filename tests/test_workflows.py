"""Workflows: nothing but `make`, actions by digest, no right at the top, a word on whether they were run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="a source distribution has no workflows")


def faults(text: str) -> list[str]:
    """What a workflow may not do."""
    ran = re.findall(r"^\s*(?:- )?run: (.*)$", text, re.MULTILINE)
    used = re.findall(r"^\s*(?:- )?uses: (.*)$", text, re.MULTILINE)
    head = text.partition("jobs:")[0]
    return [
        *(line for line in ran if (m := re.match(r"make ([a-z-]+)", line)) is None or m[1] not in TARGETS),
        *(line for line in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v[\d.]+", line)),
        *([] if re.search(r"^permissions: \{\}$", head, re.MULTILINE) else ["rights for all jobs"]),
        *([] if text.startswith("# ") and "Unrun" in head.partition("name:")[0] else ["no word on runs"]),
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    assert faults(text.replace("make ", "pip install ")) != [] or "run:" not in text
    assert faults(re.sub(r"@[0-9a-f]{40}", "@main", text)) != []
    assert faults(text.replace("permissions: {}", "permissions: write-all")) == ["rights for all jobs"]
    assert faults(text.partition("\n")[2].replace("Unrun", "")) == ["no word on runs"]
