"""``fedmf keygen``: the key with which an operator signs statements."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer


def keygen(
    path: Path = typer.Argument(
        ..., metavar="FILE", help="New file for the key, outside everything that is published."
    ),
) -> None:
    """Make a key that signs privacy statements (Ed25519), and FILE.pub for those who verify them.

    FILE is for its owner alone (mode 0600): whoever has it can state anything in the operator's name. It has
    no part in the noise; the noise key of a run is another one.

    Example: fedmf keygen operator.key
    """
    from fedmf.records import SigningKey

    key = SigningKey.create(path)
    typer.echo(
        f"{path}: keep it secret, and a backup of it. {SigningKey.public_file(path)} is for everybody: "
        f"{key.public_key}"
    )
    typer.echo(f"sign with: fedmf account RUN_DIR --publish DIR --sign-with {shlex.quote(str(path))}")
