"""The page on private Flower apps and its example do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_example_learns_and_states_its_privacy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "examples/private_flower.py"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    (last,) = re.findall(r"^after 20 rounds: accuracy ([\d.]+)", done.stdout, re.MULTILINE)
    assert float(last) > 0.9
    assert "Every user has (8, 1e-05)-differential privacy" in done.stdout
    (place,) = (tmp_path / ".fedmf" / "runs").iterdir()
    assert (place / "statement.json").is_file()


def test_the_page_shows_arguments_that_there_are() -> None:
    from fedmf.flower import CorrelatedNoise

    page = (DOCS / "private-flower.md").read_text()
    called = re.findall(r"CorrelatedNoise\(FedAvg\(\), (.*?)\)\n", page, flags=re.DOTALL)
    assert called
    named = {name for text in called for name in re.findall(r"(\w+)=", text)}
    assert named <= set(CorrelatedNoise.__init__.__annotations__)
