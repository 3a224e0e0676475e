"""The digits run as others see it: its statement signed and verified, its registry entry, NIST's fields.

    python simulations/accounting/disclosed.py [--set KEY=VALUE ...] [--output FILE.md]

Makes the directory of `configs/digits.toml`, publishes a statement before round 0, trains, publishes another,
verifies it against the run and against the first, and prints a page with all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from pathlib import Path

from fedmf.cli.app import run as fedmf
from fedmf.records import unguarded

ENTRY = {
    "--name": "fedmf digits classifier",
    "--curator": "The fedmf authors",
    "--use": "To show the fields of an entry; nobody's data are behind it",
    "--region": "None: a public data set",
    "--description": "A classifier of handwritten digits, trained on the images that ship with scikit-learn",
    "--date": "2026-11-22",
    "--author": "The fedmf authors",
    "--bias": "not looked at",
}


def said(*arguments: str) -> str:
    """What a command prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
        code = fedmf(arguments)
    if code != 0:
        raise SystemExit(f"fedmf {' '.join(arguments)} ended with {code}")
    return shown.getvalue()


def page(folder: Path, assignments: list[str]) -> str:
    """All of it in Markdown."""
    run, key, before, after = (str(folder / name) for name in ("run", "operator.key", "before", "after"))
    sets = [word for assignment in assignments for word in ("--set", assignment)]
    said("keygen", key)
    said("simulate", "configs/digits.toml", *sets, "--out", run, "--prepare")
    said("account", run, "--publish", before, "--sign-with", key)
    said("simulate", "--resume", run)
    said("account", run, "--publish", after, "--sign-with", key)
    statement = f"{after}/statement.json"
    options = [word for pair in ENTRY.items() for word in pair]
    verified = said("verify", statement, "--signed-by", f"{key}.pub", "--run", run, "--committed",
                    f"{before}/statement.json")  # fmt: skip
    entry = said("registry", statement, *options)
    fields = said("registry", statement, *options, "--form", "nist")
    return "\n".join(
        [
            "# A registry entry and NIST's fields",
            "",
            "What `fedmf registry` writes of the digits run (`configs/digits.toml`); "
            "[verify](../verify.md) explains it.",
            "The entry passes the schema of `opendp/deployments-registry-data` (commit 3e9c812).",
            "",
            "    python simulations/accounting/disclosed.py --output docs/results/disclosure.md",
            "",
            "## What a verifier sees",
            "",
            "```",
            *verified.rstrip().splitlines(),
            "```",
            "",
            "## The entry",
            "",
            "```yaml",
            *entry.rstrip().splitlines(),
            "```",
            "",
            "## The fields of SP 800-226",
            "",
            *fields.rstrip().splitlines(),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, unguarded():
        text = page(Path(folder), options.set)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
