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
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedmf.cli.app import run as command
from fedmf.flower import run_in_process
from fedmf.records import SCHEMA, SigningKey
from fedmf.runs import Session, load_model, run_of
from fedmf.streaming import Settings, open_run

__all__ = ["COMMANDS", "LOSSES", "Cell", "Made", "cells", "make"]

#: What readers say: a verdict begins with one of these words.
VERDICTS = ("behind", "tail missing", "last state missing", "unauthenticated")
ROUNDS = 8


@dataclass
class Made:
    """A run, its directory at several moments, and what goes with it."""

    folder: Path
    released: dict[str, int]
    statements: dict[str, Path] = field(default_factory=dict)

    def source(self, moment: str) -> Path:
        """The directory as it was."""
        return self.folder / moment


@dataclass(frozen=True)
class Loss:
    """One kind of loss.

    Args:
        name: of it.
        moment: of which directory.
        take: away from a copy.
        copy: whether the copy itself can tell.
        guard: whether the memory of this machine can.
        less: whether the copy says that fewer rounds or evaluations were released.
    """

    name: str
    moment: str
    take: Callable[[Path], None]
    copy: bool
    guard: bool
    less: bool = True


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


#: A run that is begun within a total ε over the first.
_NEXT = """\
[data]
users = 24
[model]
hidden-units = 4
[cohorts]
rounds = 4
size = 6
[privacy]
epsilon = 4.0
user-namespace = "people"
"""


class _Stop(Exception):
    """Raised to stop a run midway."""


def make(folder: Path) -> Made:
    """A run of 8 rounds in two processes, kept while each lived and after the second, and a stream."""
    path, key = folder / "run", SigningKey.create(folder / "operator.key")
    del key
    settings = {
        "data": {"users": 24},
        "model": {"hidden-units": 4},
        "cohorts": {"rounds": ROUNDS, "size": 6},
        "privacy": {"epsilon": 8.0, "user-namespace": "people"},
        "local": {"batch-size": 32},
        "evaluation": {"kind": "private", "every": 3},
    }
    run = run_of(settings)
    released = {"before": 0, "living": 4, "stopped": 4, "again": 6, "closed": ROUNDS}

    def copied_after(session: Session, rounds: int, moment: str, stop: bool = False) -> None:
        def look(report, _row) -> None:
            if report.t + 1 == rounds:
                session.server.wait()
                shutil.copytree(path, folder / moment)
                if stop:
                    raise _Stop

        with contextlib.suppress(_Stop):
            run_in_process(session, look)

    made = Made(folder, released)
    with run.start(path) as session:
        shutil.copytree(path, folder / "before")
        copied_after(session, 4, "living", stop=True)
    shutil.copytree(path, folder / "stopped")
    made.statements["living"] = made.statements["stopped"] = _signed(made, path, "signed-4")
    with Session.resume(path) as session:
        copied_after(session, 6, "again")
        session.write_reports()
    shutil.copytree(path, folder / "closed")
    made.statements["again"] = made.statements["closed"] = _signed(made, path, "signed-8")
    run_of({**settings, "privacy": {**settings["privacy"], "epsilon": 2.0}}).simulate(folder / "other")
    (folder / "next.toml").write_text(_NEXT)
    _stream(folder)
    return made


def _signed(made: Made, path: Path, name: str) -> Path:
    key = str(made.folder / "operator.key")
    code, said = _commanded(["account", str(path), "--publish", str(made.folder / name), "--sign-with", key])
    assert code == 0, said
    return made.folder / name / "statement.json"


def _stream(folder: Path) -> None:
    """A stream of 8 steps, kept after 4 and after all."""
    settings = Settings(
        norm_bound=1.0, epsilon=8.0, delta=1e-5, rounds=8, user_column="user", max_participations=2,
        min_separation=4, user_namespace="people",
    )  # fmt: skip
    for rows, name in ((4, "stream-4"), (8, "stream-8")):
        lines = ["a,b,user", *(f"0.{i},0.2,u{i % 4}" for i in range(rows))]
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")
        place = folder / "stream", settings, folder / "rows.csv", folder / "out.jsonl"
        with open_run(*place) as (run, reader):
            run.feed(reader)
        shutil.copytree(folder / "stream", folder / name)


# --- what is taken away


def _nothing(path: Path) -> None:
    del path


def _tails(path: Path) -> None:
    """``cp *.sqlite noise.key`` forgets them."""
    for file in path.glob("*-tail-*"):
        file.unlink()


def _evaluation_tails(path: Path) -> None:
    for file in path.glob("evaluation.sqlite-tail-*"):
        file.unlink()


def _last_frame(path: Path) -> None:
    """The last row and state of the newest file of the tail: a whole earlier directory."""
    from fedmf.records.frames import read_frames

    file = max(path.glob("ledger.sqlite-tail-*"))
    *_, last = [0, *(frame.end for frame in read_frames(file)[:-1])]
    os.truncate(file, last)


def _emptied(path: Path) -> None:
    """Files of the tail are there, without content."""
    for file in path.glob("ledger.sqlite-tail-*"):
        os.truncate(file, 0)


def _rows(path: Path, metrics: bool = True) -> None:
    """The newest rows of the databases, rounds from the fourth on; the files beside them stay."""
    for name, kept in (("ledger.sqlite", 3), ("evaluation.sqlite", 1)):
        connection = sqlite3.connect(path / name)
        triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
        for trigger in triggers:
            connection.execute("DROP TRIGGER " + trigger.split()[2])
        connection.execute("DELETE FROM rounds WHERE round >= ?", (kept,))
        connection.execute("DELETE FROM openings WHERE first_round > ?", (kept,))
        if not metrics:
            connection.execute("DELETE FROM metrics WHERE round > ?", (kept,))
        for trigger in triggers:
            connection.execute(trigger)
        connection.commit()
        connection.close()


def _rows_and_metrics(path: Path) -> None:
    _rows(path, metrics=False)


def _key(path: Path) -> None:
    (path / "noise.key").unlink()


def _key_and_tails(path: Path) -> None:
    _key(path)
    _tails(path)


def _releases(path: Path) -> None:
    (path / "releases.bin").unlink()


LOSSES = (
    Loss("nothing", "closed", _nothing, copy=False, guard=False, less=False),
    Loss("copied without tail", "living", _tails, copy=True, guard=True),
    Loss("copied without tail", "again", _tails, copy=True, guard=True),
    Loss("copied without tail", "closed", _tails, copy=True, guard=False, less=False),
    Loss("evaluations' tail", "living", _evaluation_tails, copy=True, guard=False),
    Loss("last frame cut", "living", _last_frame, copy=False, guard=True),
    Loss("tail emptied", "living", _emptied, copy=True, guard=True),
    Loss("rows cut", "closed", _rows, copy=True, guard=True),
    Loss("rows and metrics cut", "closed", _rows_and_metrics, copy=True, guard=True),
    Loss("state cut", "closed", _emptied, copy=True, guard=False, less=False),
    Loss("key", "closed", _key, copy=True, guard=False, less=False),
    Loss("key and tail", "living", _key_and_tails, copy=True, guard=True),
    Loss("backup restored", "stopped", _nothing, copy=False, guard=True),
    Loss("backup from before round 1", "before", _nothing, copy=False, guard=True),
)
STREAMS = (
    Loss("stream: nothing", "stream-8", _nothing, copy=False, guard=False, less=False),
    Loss("stream: backup restored", "stream-4", _nothing, copy=False, guard=True),
    Loss("stream: releases", "stream-8", _releases, copy=True, guard=False, less=False),
)


# --- who reads it


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
        nothing = "-" if cell.loss.take is _nothing and not cell.loss.guard else "nobody"
        head = (cell.loss.name, cell.loss.moment, "guard" if cell.remembered else "none", known or nothing)
        mark = " SILENT" if cell.silent else " SIGNED" if cell.signed else ""
        rows.setdefault(head, []).append(f"{cell.command}: {cell.verdict or '-'} ({cell.code}){mark}")
    for head, entries in rows.items():
        print(" | ".join(head))
        for at in range(0, len(entries), 4):
            print("    " + "; ".join(entries[at : at + 4]))


if __name__ == "__main__":
    main()
