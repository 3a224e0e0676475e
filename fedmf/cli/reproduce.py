"""``fedmf reproduce``: the scripts of a checkout, which are not in the installed package (decision 18)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer


def reproduce(
    names: list[str] = typer.Argument(
        None, metavar="NAME...", help="Tables and figures of the list, or all."
    ),
    show_list: bool = typer.Option(False, "--list", help="Print the list and stop."),
    quick: bool = typer.Option(False, "--quick", help="Minutes: what is left out is said. The default."),
    full: bool = typer.Option(False, "--full", help="Everything: hours for some."),
    out: Path | None = typer.Option(
        None,
        "--out",
        metavar="DIR",
        help="Where pages and pictures go; docs/results renews those there.",
    ),
) -> None:
    """Compute tables and figures of the papers anew, beside the published and the committed ones.

    Needs a checkout of fedmf's source. The exit code is 1 if a committed result is stale or a difference
    from a paper is not understood.

    Example: fedmf reproduce lambda-cgd-table4
    """
    if quick and full:
        raise ValueError("--quick and --full (form) must not be given together. Leave one out.")
    script = runner()
    arguments = [*(names or ()), *(["--full"] if full else []), *(["--list"] if show_list else [])]
    if out is not None:
        arguments += ["--out", str(out)]
    raise typer.Exit(subprocess.run([sys.executable, str(script), *arguments], check=False).returncode)


def runner(package: Path = Path(__file__).parents[1]) -> Path:
    """The script of the checkout that this package is in.

    Args:
        package: folder of fedmf.

    Raises:
        ValueError: it is installed without one.
    """
    script = package.parent / "simulations" / "reproduce" / "run.py"
    if not script.exists():
        raise ValueError(
            f"reproduce (command) must run from a checkout of fedmf's source; got the package in {package}. "
            "Clone the source, `make run` there once, and use its .venv/bin/fedmf."
        )
    return script
