"""A natural mistake, and the files and programs that several of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Rounds of the runs that are tried; the screen has a line for each second one.
ROUNDS = 20


@dataclass(frozen=True)
class Mistake:
    """What somebody gets wrong.

    Args:
        role: who.
        what: in a few words.
        words: patterns that a line must have, all of them, to tell the fault.
        prepare: builds the files in a folder and says with which arguments Python is run there.
        meant: a pattern that a line has where the slip is understood as it was meant; "" where it cannot be.
        answers: where it is refused for want of something else, by a line with such a pattern: the arguments
            with which it is tried again.
    """

    role: str
    what: str
    words: tuple[str, ...]
    prepare: Callable[[Path], list[str]]
    meant: str = ""
    answers: tuple[tuple[str, tuple[str, ...]], ...] = ()


def fedmf(*arguments: str) -> list[str]:
    """The command."""
    return ["-m", "fedmf", *arguments]


def command(*arguments: str) -> Callable[[Path], list[str]]:
    """The command in an empty folder."""
    return lambda folder: fedmf(*arguments)


def program(text: str) -> Callable[[Path], list[str]]:
    """A Python program in an empty folder."""
    return lambda folder: ["-c", textwrap.dedent(text)]


def digits(*changes: str) -> Callable[[Path], list[str]]:
    """Twenty rounds of training on the digits, with keys changed."""
    base = ("data.users=120", f"cohorts.rounds={ROUNDS}", "cohorts.size=12", "model.hidden-units=16")
    assignments = [part for change in (*base, *changes) for part in ("--set", change)]
    return command("simulate", "configs/digits.toml", *assignments, "--out", "run")


BUDGET = ("--epsilon", "8", "--delta", "1e-5")


def stream(
    content: Callable[[], str], *options: str, name: str = "rows.csv", norm_bound: str = "1"
) -> Callable[[Path], list[str]]:
    """A stream of a file that is made on the spot."""

    def prepare(folder: Path) -> list[str]:
        (folder / name).write_text(content(), encoding="utf-8")
        return fedmf("stream", "--input", name, "--norm-bound", norm_bound, *BUDGET, *options)

    return prepare


def lines_of(header: str, rows: Sequence[Sequence[object]], separator: str = ",") -> str:
    """Text of a table."""
    return "\n".join([header, *(separator.join(map(str, row)) for row in rows)]) + "\n"


def speeds(rows: int = 2000, seed: int = 0) -> list[list[object]]:
    """Rows of two numbers inside the unit ball."""
    rng = np.random.default_rng(seed)
    return [[round(float(v), 4) for v in row] for row in rng.normal(0.4, 0.1, (rows, 2))]


def weather(rows: int = 2000) -> list[list[object]]:
    """Temperature in °C, humidity in %, pressure in hPa."""
    rng = np.random.default_rng(1)
    return [[round(float(v), 1) for v in row] for row in rng.normal((14, 70, 1013), (6, 12, 7), (rows, 3))]


def people(users: int = 100, each: int = 12, scaled: bool = True, seed: int = 2) -> list[list[object]]:
    """Rows of a user, age, height, weight and a label that they tell."""
    rng = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for user in range(users):
        z = rng.standard_normal((each, 3))
        told = z @ np.array([1.0, -1.0, 1.5]) + 0.3 * rng.standard_normal(each) > 0
        x = z if scaled else z * np.array([15, 10, 14]) + np.array([45, 170, 75])
        rows += [
            [f"u{user:03}", *(round(float(v), 3) for v in row), "yes" if yes else "no"]
            for row, yes in zip(x, told, strict=True)
        ]
    return rows


PEOPLE = "user,age,height,weight,label"

CONFIG = """
[data]
kind = "table"
path = "rows.csv"
partition = "natural"
user-column = "user"
roster = "users.txt"
users = 80
feature-columns = "age,height,weight"
input-shape = "3"
label-column = "label"
class-names = "no,yes"

[model]
kind = "mlp"
hidden-units = "32"

[cohorts]
kind = "cyclic"
rounds = {rounds}
size = 8

[privacy]
epsilon = 8.0
delta = 1e-5
clip-norm = 0.5

[mechanism]
kind = "banded-toeplitz"

[optimizer]
kind = "sgd"
learning-rate = 0.5
momentum = 0.9

[local]
batch-size = 16
learning-rate = 0.1
"""


def table(
    rows: Callable[[], list[list[object]]] = people,
    *changes: str,
    header: str = PEOPLE,
    roster: Sequence[str] = (),
    separator: str = ",",
    config: str = CONFIG,
) -> Callable[[Path], list[str]]:
    """Training on an own table, as `fedmf init table` shapes it."""

    def prepare(folder: Path) -> list[str]:
        (folder / "rows.csv").write_text(lines_of(header, rows(), separator), encoding="utf-8")
        names = roster or [f"u{user:03}" for user in range(100)]
        (folder / "users.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        (folder / "table.toml").write_text(config.format(rounds=ROUNDS), encoding="utf-8")
        assignments = [part for change in changes for part in ("--set", change)]
        return fedmf("simulate", "table.toml", *assignments, "--out", "run")

    return prepare
