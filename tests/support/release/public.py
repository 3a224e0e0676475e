"""What is public: names, commands with their options, keys, fields of statements, as one table.

python -m tests.support.release.public

writes it into `tests/public.json`, which changes on purpose only; docs/stability.md says what may change.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperOption

import fedmf
import fedmf.flower
from fedmf.cli.app import program
from fedmf.runs import account, account_branches
from fedmf.runs.tables import keys
from fedmf.streaming import account_stream

TABLE = Path(__file__).resolve().parents[2] / "public.json"
SAMPLES = TABLE.parent / "samples" / "header-7"


def public() -> dict[str, Any]:
    """The table of this code."""
    commands = getattr(program(), "commands", {})
    return {
        "fedmf": sorted(fedmf.__all__),
        "fedmf.flower": sorted(fedmf.flower.__all__),
        "commands": {name: _typed(command) for name, command in sorted(commands.items())},
        "keys": sorted(f"{key.dotted}: {key.type.__name__}" for key in keys()),
        "statements": _fields(),
    }


def text(table: dict[str, Any]) -> str:
    """The table as it is committed."""
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def _typed(command: Any) -> list[str]:
    """What is typed after a command: arguments in their order, then options."""
    arguments = [f"<{one.name}>" for one in command.params if isinstance(one, TyperArgument)]
    options = [one for one in command.params if isinstance(one, TyperOption) and not one.hidden]
    return arguments + sorted(name for one in options for name in (*one.opts, *one.secondary_opts))


def _fields() -> dict[str, list[str]]:
    """Names in the JSON of each kind of statement."""
    with tempfile.TemporaryDirectory() as folder:
        run, copy, stream = (Path(folder, name) for name in ("run", "copy", "stream"))
        for sample, place in (("secret-key", run), ("stream-users", stream)):
            with tarfile.open(SAMPLES / f"{sample}.tar.xz") as archive:
                archive.extractall(place, filter="data")
        shutil.copytree(run, copy)
        statement = account(run)
        stated = {
            "of a run": statement.to_dict(),
            "of a run, published": statement.public(),
            "of branches of a run": account_branches([run, copy]).to_dict(),
            "of a stream": account_stream(stream),
        }
    return {kind: sorted(fields) for kind, fields in stated.items()}


if __name__ == "__main__":
    TABLE.write_text(text(public()), encoding="utf-8")
