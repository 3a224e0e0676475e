"""Records in which one value was changed by somebody who computes their chains again but has no key."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedmf.records import SCHEMA, RecordKind, Seal, opening_rows
from fedmf.records.ledger.schema import LEDGER, rows
from fedmf.streaming.state.schema import STREAM_STATE

__all__ = ["forge_ledger", "forge_stream", "ledgers_forged", "streams_forged"]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each single value of a JSON document."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*at, key))
    else:
        yield at


def changed(value: Any, draw: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice([-1, 1, 10])
    if value == 0.0 and isinstance(value, float):
        return draw.choice([0.5, 1.0])
    if isinstance(value, float):
        return value * draw.choice([0.5, 0.9, 1 + 1e-6, 1.1, 2.0, 8 / 3])
    return draw.choice([1, 0.5, "x"]) if value is None else value + draw.choice(["x", "0", " "])


def forge(text: str, draw: random.Random) -> tuple[str, str]:
    """(the document with one value changed, where)."""
    document = json.loads(text)
    *way, last = draw.choice(list(places(document)))
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = changed(inner[last], draw)
    return json.dumps(document, ensure_ascii=False), ".".join(map(str, [*way, last]))


def forge_ledger(path: Path, edit: Callable[[str], str], seal: Seal | None = None) -> None:
    """Change a ledger's header and compute the chain again, and codes where the seal has the key."""
    seal = seal or Seal.of(LEDGER, None)
    connection = sqlite3.connect(path)
    triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
    for trigger in triggers:
        connection.execute("DROP TRIGGER " + trigger.split()[2])
    query = "SELECT version, rounds, max_participations, min_separation, json FROM header"
    *fields, text = connection.execute(query).fetchone()
    text = edit(text)
    header = chain = seal.chained(b"header", *fields, text)
    connection.execute("UPDATE header SET json = ?", (text,))
    _put(connection, seal, "header", "id = 0", chain)
    waiting = opening_rows(connection, LEDGER)
    for row, _ in [*rows(connection), (None, None)]:
        while waiting and (row is None or waiting[0][0][2] <= row.round):
            content, _ = waiting.pop(0)
            chain = seal.chained(b"opening", chain, header, *content)
            _put(connection, seal, "openings", f"number = {content[0]}", chain)
        if row is not None:
            chain = seal.chained(b"round", chain, header, *row)
            _put(connection, seal, "rounds", f"round = {row.round}", chain)
    for index, version, metrics in connection.execute("SELECT round, version, json FROM metrics").fetchall():
        value = seal.chained(b"metrics", header, index, version, metrics)
        _put(connection, seal, "metrics", f"round = {index}", value)
    for trigger in triggers:
        connection.execute(trigger)
    connection.commit()
    connection.close()


def forge_stream(path: Path, edit: Callable[[str], str]) -> None:
    """Change a stream's plan and compute its chain value again."""
    connection = sqlite3.connect(path)
    text, digest_key = connection.execute("SELECT json, digest_key FROM plan").fetchone()
    text = edit(text)
    chain = _seal(STREAM_STATE).chained(b"plan", text, digest_key)
    connection.execute("UPDATE plan SET json = ?, chain = ?", (text, chain))
    connection.commit()
    connection.close()


def _seal(kind: RecordKind) -> Seal:
    return Seal.of(kind, None)


def _put(connection: sqlite3.Connection, seal: Seal, table: str, where: str, chain: bytes) -> None:
    connection.execute(f"UPDATE {table} SET chain = ? WHERE {where}", (chain,))
    if seal.key is not None:
        connection.execute(f"UPDATE {table} SET mac = ? WHERE {where}", (seal.code(chain),))


def ledgers_forged(draw: random.Random) -> Callable[[Path], str]:
    """Changes a value of the header of the run at a path, and says which."""
    return lambda path: _forged(draw, lambda edit: forge_ledger(path / "ledger.sqlite", edit))


def streams_forged(draw: random.Random) -> Callable[[Path], str]:
    """Changes a value of the plan of the stream at a path, and says which."""
    return lambda path: _forged(draw, lambda edit: forge_stream(path / "state" / "state.sqlite", edit))


def _forged(draw: random.Random, change: Callable[[Callable[[str], str]], None]) -> str:
    where: list[str] = []

    def edit(text: str) -> str:
        forged, place = forge(text, draw)
        where.append(place)
        return forged

    change(edit)
    return where[0]
