"""G9 for faults of values: files, screens, logs and exit codes do not show that a row has one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedmf.cli.app import run as command
from fedmf.training.compiled.steps import train_on_rows
from guarantees.test_g9_two_worlds import Log, logged, published

USERS = [f"u{i:02d}" for i in range(16)]
HEADER = "who,age,dose,ward,outcome"
#: The row of one user, as usual and with a fault in each kind of value.
USUAL = "u03,0.25,1.5,surgery,well"
FAULTS = {
    "NaN": "u03,NaN,1.5,surgery,well",
    "text in a number": "u03,young,1.5,surgery,well",
    "a missing cell": "u03,,1.5,surgery,well",
    "an unknown category": "u03,0.25,1.5,Surgery,well",
    "an unknown label": "u03,0.25,1.5,surgery,fine",
    "a field too many": "u03,0.25,1.5,surgery,well,secret",
    "an empty field too many": "u03,0.25,1.5,surgery,well,",
    "a field too few": "u03,0.25,1.5,surgery",
    "a quote that never ends": 'u03,0.25,1.5,surgery,"well',
    "out of bounds": "u03,99999,1.5,surgery,well",
    "a huge number": "u03,1e400,1.5,surgery,well",
    "a number beyond float32": "u03,1e39,1.5,surgery,well",
    "not UTF-8": "u03,0.25,1.5,surg\xe9ry,well",
}
#: Who took part is public to a stream; in training the list of users is.
FAULTS_OF_IDS = {
    "an unreadable id": "u\x00\xe9,0.25,1.5,surgery,well",
    "no id": ",0.25,1.5,surgery,well",
    "an unknown id": "u99,0.25,1.5,surgery,well",
}
SCHEMA = """
[columns.who]
kind = "user"
[columns.age]
kind = "number"
lower = -3.0
upper = 3.0
[columns.dose]
kind = "number"
lower = -3.0
upper = 3.0
[columns.ward]
kind = "category"
categories = ["surgery", "eyes"]
[columns.outcome]
kind = "category"
categories = ["ill", "well"]
"""
CONFIGURATION = """
[data]
kind = "table"
path = "rows.csv"
test-fraction = 0.25
partition = "by-user"
users = 12
user-list = "users.txt"
user-column = "who"
label-column = "outcome"
{columns}
[model]
kind = "mlp"
hidden-units = 4
[cohorts]
rounds = 4
users-per-round = 4
[privacy]
epsilon = 8.0
noise-seed = 3
[execution]
evaluate-every = 1
"""
BY_SCHEMA = 'schema = "schema.toml"'
BY_COLUMNS = 'feature-columns = "age,dose"\nclass-names = "ill,well"\ninput-shape = "2"'


def lines(users: list[str], seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    rows = []
    for user in users:
        age, dose = rng.uniform(-1, 1, 2).round(4).tolist()
        rows.append(f"{user},{age},{dose},eyes,{'well' if age > 0 else 'ill'}")
    return rows


def written(folder: Path, row: str) -> None:
    """The input of a world; in it one row of user u03 is this one."""
    folder.mkdir()
    rows = lines(USERS, seed=0)
    rows[3] = row
    content = "\n".join([HEADER, *rows]) + "\n"
    (folder / "rows.csv").write_bytes(content.encode("latin-1"))
    (folder / "users.txt").write_text("\n".join(USERS) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    for name, columns in (("schema", BY_SCHEMA), ("columns", BY_COLUMNS)):
        (folder / f"{name}.toml.run").write_text(CONFIGURATION.format(columns=columns))


STREAM = "stream --input rows.csv --epsilon 8 --delta 1e-5 --seed 5 --rounds 16 --output out.jsonl"
COMMANDS = {
    "training by a schema": ["simulate schema.toml.run --out run", "account run --public run.txt"],
    "training by columns": ["simulate columns.toml.run --out run", "account run --public run.txt"],
    "stream by a schema": [f"{STREAM} --state-dir run --schema schema.toml"],
    "stream by columns": [
        f"{STREAM} --state-dir run --columns age,dose --user-column who --clip-norm 1"
    ],
}
#: Decimal numbers and percentages are noised, or noise levels that the worlds share. So is the name
#: of the least certain column, whose error is estimated from released means.
NOISED = re.compile(
    r'-?\d+\.\d+(e[-+]?\d+)?|-?\d+(\.\d+)? ?%|-?\d+e-\d+|null|"too_noisy": "[^"]*"'
    r"|(?<=A standard deviation of )\w+"
)


#: Lines of the operator's statement from the record of participation.
OPERATORS = re.compile(r".*\(not private\).*|.*(spent|participat|\"0\.\d+\"|\"1\").*")


def without_noise(text: str) -> str:
    return re.sub(r" +", " ", NOISED.sub("#", text))


def world(
    folder: Path, row: str, way: str, capsys: pytest.CaptureFixture[str], released: list[str]
) -> dict[str, object]:
    """All that leaves: exit codes, screens, logs, and files that are not the operator's.

    Screens with the numbers that contain noise are appended to ``released``.
    """
    written(folder / "world", row)
    log = Log()
    watching = logged(log)
    next(watching)
    found: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder / "world")
        for line in COMMANDS[way]:
            code = command(line.split())
            assert code == 0, line
            said = capsys.readouterr()
            found[line] = code, without_noise(said.out), without_noise(said.err)
            released.append(said.out)
    next(watching, None)
    found["log"] = log.lines
    for name, content in published(folder / "world" / "run").items():
        found[name] = content
        if name.startswith("statement"):
            found[name] = OPERATORS.sub("", content.decode())
    out = folder / "world" / "out.jsonl"
    if out.exists():
        found["out"] = without_noise(out.read_text())
    (folder / "world").rename(folder / f"world {len(list(folder.iterdir()))}")
    return found


def differences(first: object, second: object) -> list[str]:
    """The lines of which only one world has each."""
    one, other = (str(each).replace("\\n", "\n").splitlines() for each in (first, second))
    return [f"- {line}" for line in one if line not in other] + [
        f"+ {line}" for line in other if line not in one
    ]


@pytest.mark.parametrize("way", COMMANDS)
def test_a_fault_of_a_value_is_not_seen(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released: list[str] = []
    faults = dict(FAULTS)
    if way.startswith("training"):
        faults |= FAULTS_OF_IDS
        train_on_rows.compile()  # the first world would log that it waits for this
    usual = world(tmp_path, USUAL, way, capsys, released)
    seen = {}
    for fault, row in faults.items():
        faulty = world(tmp_path, row, way, capsys, released)
        different = [name for name in usual if usual[name] != faulty.get(name)]
        if different or usual.keys() != faulty.keys():
            seen[fault] = [(name, differences(usual[name], faulty[name])) for name in different]
    assert not seen, "\n".join(map(str, seen.items()))
    assert len(set(released)) > len(COMMANDS[way]), "the row changes what is released"
