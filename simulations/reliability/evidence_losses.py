"""Every command that reads records, given every kind of loss: what it says of them, and whether it signs.

    python simulations/reliability/evidence_losses.py [--only WORD]... [--json]

Makes a run (private evaluation, a secret key), keeps its directory as it was at several moments, takes
something away, and lets every reader read what is left, once where this machine remembers the run (guard) and
once where it does not (another machine). All commands run in this process. A row for each loss:

    the directory     living: copied while its first process had 4 rounds; again: while its second had 6;
                      closed: after all 8
    knows             how a reader can know of the loss: from the copy, or from the guard; "nobody" where what
                      is left is a whole earlier directory
    commands          verdict and exit code of each

Counted are *silent* ones (exit code 0 on fewer rounds than were released, no verdict, and it could be known)
and *signed* ones (published or signed in spite of a loss that could be known). Both must be 0: the exit
status says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from losses_of_records import LOSSES, STREAMS, Loss, Made, make

from fedmf.cli.app import run as command
from fedmf.runs import Session, load_model

__all__ = ["COMMANDS", "Cell", "Made", "cells", "make"]

#: What readers say: a verdict begins with one of these words.
VERDICTS = ("behind", "tail missing", "last state missing", "unauthenticated")


@dataclass(frozen=True)
class Cell:
    """What one command made of one loss."""

    loss: Loss
    remembered: bool
    command: str
    code: int
    verdict: str

    @property
    def knowable(self) -> bool:
        """Whether something is lost and it can be told."""
        return self.loss.copy or (self.loss.guard and self.remembered)

    @property
    def silent(self) -> bool:
        """Less than was released, and not a word."""
        return self.knowable and self.loss.less and self.code == 0 and not self.verdict

    @property
    def signed(self) -> bool:
        """Published in spite of it."""
        return self.knowable and self.command in PUBLISHING and self.code == 0


def _account(*options: str) -> Callable[[Made, Path, Path], Sequence[str]]:
    return lambda made, path, out: ["account", str(path), *(word.format(out=out) for word in options)]


def _sign(made: Made, path: Path, out: Path) -> Sequence[str]:
    key = str(made.folder / "operator.key")
    return ["account", str(path), "--publish", str(out / "public"), "--sign-with", key]


def _total(made: Made, path: Path, out: Path) -> Sequence[str]:
    place = str(out / "next")
    more = ["--with", str(path), "--total-epsilon", "100", "--out", place, "--prepare"]
    return ["simulate", str(made.folder / "next.toml"), *more]


def _verify(made: Made, path: Path, out: Path) -> Sequence[str]:
    del out
    return ["verify", str(_statement(made, path)), "--run", str(path)]


def _statement(made: Made, path: Path) -> Path:
    moment = (path.parent / "moment").read_text()
    return made.statements.get(moment, made.statements["living"])


COMMANDS: dict[str, Callable[[Made, Path, Path], Sequence[str]]] = {
    "account": _account(),
    "--json": _account("--json"),
    "--html": _account("--html", "{out}/page.html"),
    "--users": _account("--users", "{out}/users.csv"),
    "--publish": _account("--publish", "{out}/public"),
    "--sign-with": _sign,
    "joint": lambda made, path, out: ["account", str(path), str(made.folder / "other")],
    "total": _total,
    "report": lambda made, path, out: ["report", str(path), "--output", str(out / "report.html")],
    "report --publish": lambda made, path, out: [
        "report", str(path), "--publish", "--output", str(out / "report.html")
    ],
    "export": lambda made, path, out: ["export", str(path), "--output", str(out / "model.pt")],
    "verify --run": _verify,
}  # fmt: skip
PUBLISHING = ("--publish", "--sign-with", "report --publish")
OF_STREAMS = ("account", "--json", "--html", "joint")


def _resume(path: Path) -> tuple[int, str]:
    """Open a run for going on, and do not."""
    try:
        Session.resume(path).__exit__()
    except ValueError as error:
        return 2, str(error)
    return 0, ""


def _load_model(path: Path) -> tuple[int, str]:
    import logging

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("fedmf").addHandler(handler)
    try:
        load_model(path)
    except ValueError as error:
        return 2, str(error)
    finally:
        logging.getLogger("fedmf").removeHandler(handler)
    return 0, said.getvalue()


def _commanded(arguments: Sequence[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(arguments)
    pages = [Path(word).read_text() for word in arguments if word.endswith(".html") and Path(word).is_file()]
    return code, "\n".join([out.getvalue(), err.getvalue(), *pages])


def cells(made: Made, only: Sequence[str] = (), commands: Sequence[str] = ()) -> Iterator[Cell]:
    """Every command on every loss whose name holds one of the words given, all for none."""
    here = os.environ["XDG_STATE_HOME"]
    try:
        for loss in (*LOSSES, *STREAMS):
            if only and not any(word in loss.name for word in only):
                continue
            names = OF_STREAMS if loss in STREAMS else [*COMMANDS, "load_model", "resume"]
            for remembered in (True, False):
                for name in names:
                    if commands and name not in commands:
                        continue
                    # Readers leave the guard as it is; who goes on does not, and has a copy of it.
                    place = Path(tempfile.mkdtemp(dir=made.folder))
                    if remembered:
                        shutil.copytree(here, place / "state")
                    os.environ["XDG_STATE_HOME"] = str(place / "state")
                    path = Path(shutil.copytree(made.source(loss.moment), place / "copy"))
                    (place / "moment").write_text(loss.moment)
                    loss.take(path)
                    code, said = _read(made, name, path, place)
                    yield Cell(loss, remembered, name, code, _verdict(said))
                    shutil.rmtree(place)
    finally:
        os.environ["XDG_STATE_HOME"] = here


def _read(made: Made, name: str, path: Path, out: Path) -> tuple[int, str]:
    if name == "load_model":
        return _load_model(path)
    return _resume(path) if name == "resume" else _commanded(COMMANDS[name](made, path, out))


def _verdict(said: str) -> str:
    """The gravest verdict that something says."""
    lowered = said.lower()
    forms = ("{}:", "{} what this machine knows", '"verdict": "{}')
    return next((word for word in VERDICTS if any(form.format(word) in lowered for form in forms)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="losses whose name holds this word")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = [*cells(make(Path(folder)), options.only)]
    silent, signed = [c for c in found if c.silent], [c for c in found if c.signed]
    if options.json:
        for name, count in (("silent", silent), ("signed", signed)):
            print(json.dumps({"name": name, "value": len(count), "unit": "cells", "baseline": len(found)}))
    else:
        _show(found)
        print(f"\n{len(found)} cells: {len(silent)} silent, {len(signed)} signed")
    raise SystemExit(bool(silent or signed))


def _show(found: Sequence[Cell]) -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for cell in found:
        known = cell.knowable and ("copy" if cell.loss.copy else "guard")
        nothing = "nobody" if cell.loss.guard else "-"
        head = (cell.loss.name, cell.loss.moment, "guard" if cell.remembered else "none", known or nothing)
        mark = " SILENT" if cell.silent else " SIGNED" if cell.signed else ""
        rows.setdefault(head, []).append(f"{cell.command}: {cell.verdict or '-'} ({cell.code}){mark}")
    for head, entries in rows.items():
        print(" | ".join(head))
        for at in range(0, len(entries), 4):
            print("    " + "; ".join(entries[at : at + 4]))


if __name__ == "__main__":
    main()
