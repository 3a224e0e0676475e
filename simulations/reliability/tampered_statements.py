"""Statements and ledgers changed at random: `fedmf verify` refuses each in one line, and the unchanged not.

    python simulations/reliability/tampered_statements.py [--tries N] [--seed S] [--json]

Makes a small run (private evaluation, a secret key), stops it halfway and publishes its statement, signed.
Then, N times for statements and N times for ledgers, changes something:

    a number            one number of the statement, anywhere in it
    a bit               one bit of the file
    signature           one digit of the signature or of the public key
    signed by another   one number, and signed again with a key that is not the operator's
    signed by operator  one figure, and signed again by the operator: only computing it again finds that
    header, no key      a value of the ledger's header, every SHA-256 of the chain computed again
    header, with key    the same and every code too, as the operator could
    rows, with key      who took part in a round, chain and codes computed again with the noise key
    a row               a column of a round
    last round          taken out, chain and codes computed again
    noise key           another one

A refusal is one line. Anything else is counted as ACCEPTED or TRACEBACK, and the exit status says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bit_flips import make_run
from forged_records import changed, forge, forge_ledger, places

from fedmf.noise import NoiseKey
from fedmf.records import SCHEMA, Seal, SigningKey, load_key, save_key, unguarded
from fedmf.records.ledger.schema import LEDGER
from fedmf.runs import opened_evidence, public_statement, verify_statement
from fedmf.runs.publication import signed_document
from fedmf.statements import as_json

__all__ = [
    "LEDGERS",
    "STATEMENTS",
    "Published",
    "outcome",
    "publish",
    "tampered_ledger",
    "tampered_statement",
]

_TRIGGERS = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]


@dataclass(frozen=True)
class Published:
    """A run, its signed statement, and both keys."""

    folder: Path
    run: Path
    document: dict[str, Any]
    operator: SigningKey
    stranger: SigningKey

    @property
    def content(self) -> bytes:
        """The statement as it was written."""
        return as_json(self.document).encode()


def publish(folder: Path) -> Published:
    """Make a run and the statement of its first half."""
    run = make_run(folder)
    operator, stranger = (SigningKey.create(folder / name) for name in ("operator", "stranger"))
    with opened_evidence(run) as evidence:
        _, ledger, own_records = evidence.records
        document = public_statement(evidence.statement, ledger, own_records, operator)
    return Published(folder, run, document, operator, stranger)


def tampered_statement(made: Published, kind: str, draw: random.Random) -> tuple[bytes, str]:
    """(a changed statement, what was changed)."""
    document = json.loads(made.content)
    if kind == "a bit":
        content = bytearray(made.content)
        place = draw.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        return bytes(content), f"bit {place}"
    if kind == "signature":
        name = draw.choice(["public_key", "value"])
        digits = document["signature"][name]
        place = draw.randrange(len(digits))
        other = draw.choice([digit for digit in "0123456789abcdef" if digit != digits[place]])
        document["signature"][name] = digits[:place] + other + digits[place + 1 :]
        return as_json(document).encode(), f"{name}[{place}]"
    where = list(numbers(document))
    if kind == "signed by operator":
        where = [way for way in where if way[0] != "evidence"]
    *way, last = draw.choice(where)
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = changed(inner[last], draw)
    if kind != "a number":
        by = made.stranger if kind == "signed by another" else made.operator
        document["signature"].update(public_key=by.public_key, value=by.sign(signed_document(document)))
    return as_json(document).encode(), ".".join(map(str, [*way, last]))


def numbers(document: Any) -> Iterator[tuple[Any, ...]]:
    """The way to each number of a statement."""
    for way in places(document):
        inner = document
        for key in way:
            inner = inner[key]
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            yield way


def tampered_ledger(run: Path, kind: str, draw: random.Random) -> str:
    """Change the ledger of a run; returns what was changed."""
    path = run / "ledger.sqlite"
    own = Seal.of(LEDGER, load_key(run / "noise.key"))
    if kind == "noise key":
        (run / "noise.key").unlink()
        save_key(run / "noise.key", NoiseKey.from_os())
        return "noise.key"
    if kind.startswith("header"):
        said = list[str]()

        def edit(text: str) -> str:
            forged, place = forge(text, draw)
            said.append(place)
            return forged

        forge_ledger(path, edit, own if kind == "header, with key" else None)
        return said[0]
    with unlocked(path) as connection:
        said = [_CHANGES[kind](connection, draw)]
    if kind != "a row":
        forge_ledger(path, lambda text: text, own)
    return said[0]


def _other_participants(connection: sqlite3.Connection, draw: random.Random) -> str:
    """Somebody who took part did not."""
    rounds = connection.execute("SELECT round, users, participants FROM rounds WHERE users > 0").fetchall()
    t, users, content = draw.choice(rounds)
    place = 4 * draw.randrange(users)
    left = content[:place] + content[place + 4 :]
    connection.execute("UPDATE rounds SET users = ?, participants = ? WHERE round = ?", (users - 1, left, t))
    return f"participant {place // 4} of round {t}"


def _column(connection: sqlite3.Connection, draw: random.Random) -> str:
    rounds = [t for (t,) in connection.execute("SELECT round FROM rounds").fetchall()]
    t = draw.choice(rounds)
    column = draw.choice(["users", "checkpoints", "participants", "newcomers", "chain", "mac", "status"])
    ((value,),) = connection.execute(f"SELECT {column} FROM rounds WHERE round = ?", (t,)).fetchall()
    if isinstance(value, int):
        value += 1
    elif column == "status":
        value = "empty" if value == "released" else "released"
    elif isinstance(value, str):
        value = value.replace("0", "1") if "0" in value else value + " "
    else:
        value = bytes([*value[:-1], value[-1] ^ 1]) if value else b"\x01\x00"
    connection.execute(f"UPDATE rounds SET {column} = ? WHERE round = ?", (value, t))
    return f"{column} of round {t}"


def _without_last(connection: sqlite3.Connection, draw: random.Random) -> str:
    ((last,),) = connection.execute("SELECT MAX(round) FROM rounds").fetchall()
    connection.execute("DELETE FROM rounds WHERE round = ?", (last,))
    return f"round {last}"


_CHANGES: dict[str, Callable[[sqlite3.Connection, random.Random], str]] = {
    "rows, with key": _other_participants,
    "a row": _column,
    "last round": _without_last,
}
STATEMENTS = ("a number", "a bit", "signature", "signed by another", "signed by operator")
LEDGERS = ("header, no key", "header, with key", "noise key", *_CHANGES)


@contextlib.contextmanager
def unlocked(path: Path) -> Iterator[sqlite3.Connection]:
    """The tables of a ledger without what refuses changes of them."""
    connection = sqlite3.connect(path)
    for trigger in _TRIGGERS:
        connection.execute("DROP TRIGGER " + trigger.split()[2])
    yield connection
    for trigger in _TRIGGERS:
        connection.execute(trigger)
    connection.commit()
    connection.close()


def outcome(made: Published, content: bytes, run: Path | None, signed: bool = True) -> str:
    """What `fedmf verify` says of a statement and a run: "accepted", "refused", "TRACEBACK …"."""
    path = made.folder / "statement.json"
    path.write_bytes(content)
    try:
        verify_statement(path, made.operator.public_key if signed else None, run)
    except ValueError as error:
        return "refused" if str(error) and "\n" not in str(error) else f"TRACEBACK {error!r}"
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {error}"
    return "accepted"


def tried(made: Published, kind: str, draw: random.Random) -> tuple[str, str]:
    """(outcome of one change of a kind, what was changed)."""
    if kind in STATEMENTS:
        content, what = tampered_statement(made, kind, draw)
        return outcome(made, content, None, signed=kind != "signed by operator"), what
    copy = made.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made.run, copy)
    what = tampered_ledger(copy, kind, draw)
    return outcome(made, made.content, copy), what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tries", type=int, default=100, help="of statements, and of ledgers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    found: dict[str, Counter[str]] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, unguarded():
        made = publish(Path(folder))
        for kinds in (STATEMENTS, LEDGERS):
            for index in range(options.tries):
                kind = kinds[index % len(kinds)]
                ended, what = tried(made, kind, draw)
                found.setdefault(kind, Counter())[ended.split()[0]] += 1
                if ended != "refused":
                    wrong += 1
                    print(f"{kind}: {what}: {ended}", file=sys.stderr)
        untouched = [outcome(made, made.content, run) for run in (None, made.run)]
    if options.json:
        for kind, counts in found.items():
            tries, refused = counts.total(), counts["refused"]
            print(json.dumps({"name": kind, "value": refused, "unit": "refused", "baseline": tries}))
    else:
        print(f"{'what is changed':20} {'tries':>6} {'refused':>8} {'ACCEPTED':>9} {'TRACEBACK':>10}")
        for kind, counts in found.items():
            row = [counts[name] for name in ("refused", "accepted", "TRACEBACK")]
            print(f"{kind:20} {counts.total():6} {row[0]:8} {row[1]:9} {row[2]:10}")
        print(f"unchanged, without and with the run: {', '.join(untouched)}")
    raise SystemExit(bool(wrong) or untouched != ["accepted", "accepted"])


if __name__ == "__main__":
    main()
