"""docs/flower-apps.md: its program runs as it is printed."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "flower-apps.md").read_text()


def test_the_program_of_the_page_trains_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "flower-apps.md", "exec"), names)
    assert float(capsys.readouterr().out) < 0.05
