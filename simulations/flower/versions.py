"""The tests that touch Flower, under each version of it that serves.

    python simulations/flower/versions.py [VERSION ...] [--tests PATH ...]

"nightly" is Flower's newest build of its main branch.

Every version is installed without its dependencies into a folder that comes before the environment's own on
Python's path, so that clients, links and nodes of the tests run it too. Prints a table; exit code 1 if a test
fails under one of them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("1.38.0", "1.39.0", "1.40.0", "1.41.0", "1.42.0")
#: The example, what is touched of Flower's inside, the wrapper, and a link with nodes.
TESTS = (
    "tests/flower/test_compat.py",
    "tests/flower/wrapper/test_example.py",
    "tests/flower/wrapper/test_correlated_noise.py",
    "tests/flower/wrapper/test_first_look.py",
    "tests/flower/boundary",
    "tests/flower/local_run",
    "tests/test_deployment.py",
)


def environment(version: str, folder: Path) -> dict[str, str]:
    """That of a process which imports this version.

    Raises:
        subprocess.CalledProcessError: it cannot be installed.
    """
    package = "flwr-nightly" if version == "nightly" else f"flwr=={version}"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, package], check=True)
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(folder), str(ROOT), before)))
    return {**os.environ, "PYTHONPATH": path}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    options = parser.parse_args()
    table, failed = Table("flwr", "imported", "passed", "failed", "skipped", "seconds"), 0
    for version in options.versions:
        with tempfile.TemporaryDirectory() as folder:
            variables = environment(version, Path(folder))
            look = [sys.executable, "-c", "import flwr, fedmf.flower; print(flwr.__version__)"]
            imported = subprocess.run(look, env=variables, cwd=ROOT, capture_output=True, text=True)
            begun = time.monotonic()
            pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options.tests]
            tests = subprocess.run(pytest, env=variables, cwd=ROOT, capture_output=True, text=True)
        said = tests.stdout.strip().splitlines() or [tests.stderr.strip()]
        counts = {
            word: number for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", said[-1])
        }
        bad = int(counts.get("failed", 0)) + int(counts.get("error", 0))
        found = imported.stdout.strip()
        wrong = not found if version == "nightly" else found != version
        failed += bad + wrong + ("passed" not in counts)
        cells = (
            found or "no",
            counts.get("passed", "0"),
            str(bad),
            counts.get("skipped", "0"),
        )
        table.add_row(version, *cells, f"{time.monotonic() - begun:.0f}")
        for line in said:
            if line.startswith(("FAILED", "ERROR")):
                print(f"{version}: {line[:300]}", flush=True)
    Console().print(table)
    sys.exit(int(failed > 0))


if __name__ == "__main__":
    main()
