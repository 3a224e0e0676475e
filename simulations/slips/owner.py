"""Mistakes of somebody who trains on an own table."""

from __future__ import annotations

from slips.attempt import CONFIG, PEOPLE, Mistake, people, table

WHO = "table owner"


def _missing() -> list[list[object]]:
    rows = people()
    for row in rows[::3]:
        row[2] = ""
    return rows


def _decimal_commas() -> list[list[object]]:
    return [[row[0], *(str(cell).replace(".", ",") for cell in row[1:4]), row[4]] for row in people()]


def _dates() -> list[list[object]]:
    return [[row[0], "1981-03-02", *row[2:]] for row in people()]


def _capitals() -> list[list[object]]:
    return [[str(row[0]).upper(), *row[1:]] for row in people()]


def _raw() -> list[list[object]]:
    return people(scaled=False)


def _numbered() -> list[list[object]]:
    return [[*row[:4], "1.0" if row[4] == "yes" else "0.0"] for row in people()]


OWNER = (
    Mistake(
        WHO,
        "one cell is missing in every third row",
        ("row|cell|contribution", "missing|cannot be read|left out|zero"),
        table(_missing),
    ),
    Mistake(
        WHO,
        "raw years, centimetres and kilograms",
        ("scale|unit|contract", "feature|number|column"),
        table(_raw),
    ),
    Mistake(
        WHO,
        "a mistyped class name",
        ("class.names|label",),
        table(people, "data.class-names=No,Yes"),
    ),
    Mistake(
        WHO,
        "`users` is not the roster less those held out",
        ("users", "must be 80", "100|held out"),
        table(people, "data.users=100"),
    ),
    Mistake(
        WHO,
        "the label is among the features",
        ("label", "different|feature"),
        table(people, "data.feature-columns=age,height,label"),
    ),
    Mistake(WHO, "no roster", ("roster",), table(people, "data.roster=")),
    Mistake(
        WHO,
        "semicolons between the cells",
        ("separat|semicolon|comma|user;age", "column"),
        table(people, header=PEOPLE.replace(",", ";"), separator=";"),
    ),
    Mistake(
        WHO,
        "decimal commas",
        ("row|cell|field", "cannot be read|missing|left out|number|zero"),
        table(_decimal_commas),
    ),
    Mistake(
        WHO,
        "a date among the features",
        ("row|cell|column", "cannot be read|missing|left out|number|zero"),
        table(_dates),
    ),
    Mistake(
        WHO,
        "an input shape of four for three features",
        ("input.shape", "3"),
        table(people, "data.input-shape=4"),
    ),
    Mistake(
        WHO,
        "ids are written otherwise in the roster",
        ("roster", "got none|no row|own nothing|not on|nobody"),
        table(_capitals),
    ),
    Mistake(
        WHO,
        "labels 1.0 in the file, class names 0,1",
        ("label|class", "1"),
        table(_numbered, "data.class-names=0,1"),
    ),
    Mistake(
        WHO,
        "partition iid on people's rows",
        ("natural|made.up|user.column", "user"),
        table(people, config=CONFIG.replace('partition = "natural"', 'partition = "iid"')),
    ),
    Mistake(WHO, "the file is elsewhere", ("path", "rows2.csv"), table(people, "data.path=rows2.csv")),
    Mistake(
        WHO,
        "a mistyped feature column",
        ("feature.columns", "heigth"),
        table(people, "data.feature-columns=age,heigth,weight"),
    ),
)
