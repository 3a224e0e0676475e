"""Make mistakes on purpose, and check that each is refused in one line that helps.

    python simulations/mistakes.py [WORD ...]

Each mistake is a command, or a few lines of Python against the public API, in a scratch directory
with small tables, runs and streams. With words, only the mistakes that have all of them are made.
A mistake fails if

* it ends with another exit code than that of `fedmf.cli.exit_codes`;
* a command shows a traceback, or its error has more than one line;
* the message does not name the argument, does not say what is wrong with it, or not what to do;
* a file or directory is left that was not there before.

The exit code of this script is the number of failures, at most 100.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedmf
from fedmf.cli.app import run as run_command
from fedmf.cli.exit_codes import exit_code

#: Most lines on standard error: the error, and a hint before it.
MOST_LINES = 2


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what its message must say.

    Args:
        what: the mistake in a few words.
        doing: a command that begins with ``fedmf``, or lines of Python.
        name: pattern of the argument, key or file.
        cause: pattern of what is wrong with it.
        remedy: pattern of what it must be, or what to do.
        code: the exit code; 0 if a warning is enough.
        before: lines of Python that prepare the directory.
        keeps: names that may be left, since something was released or can be continued.
    """

    what: str
    doing: str
    name: str
    cause: str
    remedy: str
    code: int = 2
    before: str = ""
    keeps: tuple[str, ...] = ()


TABLE = """
[data]
kind = "table"
path = "rows.csv"
partition = "by-user"
user-column = "user"
user-list = "users.txt"
users = 16
feature-columns = "age,height"
label-column = "label"
class-names = "no,yes"
[model]
kind = "logistic"
[cohorts]
rounds = 4
users-per-round = 4
[privacy]
epsilon = 8.0
clip-norm = 0.5
[mechanism]
kind = "identity"
"""

DIGITS = """
[data]
kind = "digits"
users = 24
[model]
kind = "logistic"
[cohorts]
rounds = 8
users-per-round = 6
[privacy]
epsilon = 8.0
clip-norm = 0.5
[mechanism]
kind = "identity"
"""

SWEEP = """
base = "digits.toml"
seeds = [0, 1]
[variants]
plain = { mechanism.kind = "identity" }
banded = { mechanism.kind = "bisr" }
[grid]
privacy.epsilon = [2.0, 8.0]
"""

SILO = """
[silo]
training = "hearts"
directory = "HERE/silo"
[cohorts]
rounds = 4
users-per-round = 2
[privacy]
epsilon = 8.0
clip-norm = 1.0
"""

#: What the lines of Python may use.
PRELUDE = """
import os, signal, threading
from pathlib import Path
import numpy as np, pandas as pd, torch
from torch import nn
import fedmf
from fedmf.cli.app import run as command

def frame():
    table = pd.read_csv("rows.csv")
    return table.assign(label=table["label"] == "yes")

def data(table=None, **changes):
    table = frame() if table is None else table
    usual = dict(user="user", label="label", features=["age", "height"], classes=2)
    return fedmf.Dataset.from_frame(table, **{**usual, "user_list": "from-data", **changes})

def task(model=None):
    return fedmf.classification(data(), model or nn.Linear(2, 2))

def run(**changes):
    cohorts = fedmf.CyclicCohorts(rounds=4, users_per_round=4)
    privacy = fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5)
    usual = dict(cohorts=cohorts, privacy=privacy, mechanism="identity")
    return fedmf.Run(**{**usual, **changes, "task": changes.get("task") or task()})

def stream(path="new", **changes):
    usual = dict(rounds=20, clip_norm=1.0, epsilon=8.0, delta=1e-5, dimension=2)
    return fedmf.PrivateStream(path, **{**usual, **changes})

def weekly(**changes):
    usual = dict(dimension=None, columns=["speed"], release_every="1w", start="2026-01-05")
    return stream(rounds=4, **{**usual, **changes})

def edit(file, old, new):
    text = Path(file).read_text()
    assert old in text, (file, old)
    Path(file).write_text(text.replace(old, new))
"""

FLOWER = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian
from fedmf.flower import *

app = ClientApp()

@app.train()
def train(message, context):
    parts = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(parts), reply_to=message)

def strategy(inner=None, **changes):
    privacy = fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=1.0)
    cohorts = fedmf.CyclicCohorts(rounds=4, users_per_round=5)
    usual = dict(privacy=privacy, cohorts=cohorts, users=10, run_dir="new")
    return CorrelatedNoise(inner or FedAvg(), **{**usual, **changes})

def start(made, nodes=10, arrays=None, **more):
    arrays = arrays or ArrayRecord(nn.Linear(2, 2).state_dict())
    return made.start(InProcessGrid(app, nodes=nodes), initial_arrays=arrays, **more)

def silo(old="", new="", **changes):
    if old:
        edit("silo.toml", old, new)
    usual = dict(users=["a", "b", "c", "d"], model=model, train=lambda user, arrays: arrays)
    return Silo("silo.toml", **{**usual, **changes})

model = {"w": np.zeros(2, np.float32)}
"""

SET = "fedmf simulate digits.toml --out new --set "
ROWS = "fedmf simulate table.toml --out new --set "
BUDGET = "--clip-norm 1 --epsilon 8 --delta 1e-5 "
STREAM = f"fedmf stream --input speeds.csv --columns speed,load --user-column user {BUDGET}"
NEW = STREAM + "--state-dir new --output new.csv "
STATE = STREAM + "--rows-per-user 4 --rounds 60 --state-dir state --output m.csv "
WEEKS = (
    f"fedmf stream --input weekly.csv --columns speed --user-column user {BUDGET}--time-column time"
    " --release-every 1w --start 2026-01-05 --rounds 8 --state-dir new --output new.csv "
)
DESIGN = "fedmf design --rounds 8 --max-participations 2 --min-separation 4 --mechanism bisr "

MISTAKES: dict[str, list[Mistake]] = {
    "configurations": [
        Mistake(
            "a misspelt key",
            SET + "privacy.epsilonn=1",
            "privacy.epsilonn",
            "unknown",
            "did you mean 'privacy.epsilon'",
        ),
        Mistake(
            "an underscore in a key",
            SET + "privacy.clip_norm=1",
            "privacy.clip_norm",
            "unknown",
            "did you mean 'privacy.clip-norm'",
        ),
        Mistake(
            "a table that does not exist",
            SET + "optimizer.eta=1",
            "optimizer.eta",
            "unknown",
            "tables are task, data",
        ),
        Mistake(
            "a key of another kind",
            SET + "model.hidden-units=32",
            "hidden-units",
            "not of kind 'logistic'",
            "Leave it out",
        ),
        Mistake(
            "text for a number", SET + "privacy.epsilon=eight", "epsilon", "'eight'", "valid number"
        ),
        Mistake(
            "a fraction for a count",
            SET + "cohorts.users-per-round=2.5",
            "users_per_round",
            "got 2.5",
            "valid integer",
        ),
        Mistake(
            "a negative layer",
            SET + "model.kind=mlp --set model.hidden-units=-1",
            "hidden_units",
            "got '-1'",
            "at least 1|greater than or equal to 1",
        ),
        Mistake("epsilon NaN", SET + "privacy.epsilon=nan", "epsilon", "got nan", "finite"),
        Mistake("epsilon infinite", SET + "privacy.epsilon=inf", "epsilon", "got inf", "finite"),
        Mistake("epsilon 0", SET + "privacy.epsilon=0", "epsilon", "got 0", "greater than 0"),
        Mistake("delta 1", SET + "privacy.delta=1", "delta", "got 1", "less than 1"),
        Mistake(
            "a clip norm beyond floating point",
            SET + "privacy.clip-norm=1e300",
            "clip norm",
            "got 1e.300",
            "must lie in",
        ),
        Mistake(
            "--set without a value", SET + "privacy.epsilon", "--set", "got", "table.key=value"
        ),
        Mistake(
            "an unknown mechanism",
            SET + "mechanism.kind=bandmff",
            "mechanism",
            "bandmff",
            "Did you mean 'bandmf'",
        ),
        Mistake(
            "an unknown model", SET + "model.kind=resnett", "model", "resnett", "must be one of"
        ),
        Mistake(
            "an absent file", "fedmf simulate no.toml", "no.toml", "No such file", "fedmf init"
        ),
        Mistake(
            "a folder as the file", "fedmf simulate run", "run", "Is a directory", "fedmf init"
        ),
        Mistake(
            "an empty file",
            "fedmf simulate new.toml",
            "new.toml",
            r"no table \[data\]",
            r"write \[data\]",
            before="Path('new.toml').touch()",
        ),
        Mistake(
            "a binary file",
            "fedmf simulate new.toml",
            "new.toml",
            "can't decode",
            "is not TOML",
            before="Path('new.toml').write_bytes(bytes(range(256)))",
        ),
        Mistake("a table of rows", "fedmf simulate rows.csv", "rows.csv", "line 1", "is not TOML"),
        Mistake(
            "a task whose function takes no argument",
            "fedmf simulate new.toml",
            "helper:make",
            "takes 0 positional arguments",
            "called with one argument",
            before=(
                "Path('helper.py').write_text('def make(): return 3')\n"
                "Path('new.toml').write_text("
                '\'[task]\\nkind = "function"\\nfunction = "helper:make"\')'
            ),
        ),
    ],
    "impossible combinations": [
        Mistake(
            "k·b beyond n",
            SET + "cohorts.max-participations=9",
            "max_participations",
            "k=9, b=4, n=8",
            "at most k=2",
        ),
        Mistake(
            "a cohort larger than the population",
            SET + "cohorts.users-per-round=99",
            "cohort size",
            "got 99",
            r"1\.\.24",
        ),
        Mistake(
            "a separation that leaves too few users",
            SET + "cohorts.min-separation=9",
            "b=9",
            "only 3",
            "must be at most",
        ),
        Mistake(
            "more bands than rounds",
            SET + "mechanism.kind=bisr --set mechanism.bands=500",
            "bands",
            "got 500",
            "at most rounds n=8",
        ),
        Mistake(
            "more users than examples", SET + "data.users=99999", "users", "got 99999", r"1\.\.1438"
        ),
        Mistake(
            "amplification without secret cohorts",
            SET + "privacy.amplified=true",
            "cohorts",
            "got 'cyclic'",
            "must be sampled",
        ),
        Mistake(
            "all users held out",
            ROWS + "data.test-fraction=0.999",
            "test_fraction",
            "all 20 users",
            "must leave users to train on",
        ),
        Mistake(
            "users held out are counted as well",
            ROWS + "data.users=20",
            "users",
            "4 are held out",
            "must be 16",
        ),
        Mistake(
            "a device that is not here",
            "fedmf simulate digits.toml --out new --device cuda",
            "--device cuda",
            "none is available",
            "needs an NVIDIA GPU",
        ),
        Mistake(
            "a log format that does not exist",
            "fedmf simulate digits.toml --out new --log-format xml",
            "--log-format",
            "'xml'",
            "'text', 'json'",
        ),
        Mistake(
            "Ray that is not running",
            "fedmf simulate digits.toml --out new --engine ray",
            "RAY_ADDRESS",
            "Connection refused",
            "Start Ray there",
            before="os.environ['RAY_ADDRESS'] = '127.0.0.1:9'",
        ),
        Mistake(
            "an engine that does not exist",
            "fedmf simulate digits.toml --out new --engine rayy",
            "--engine",
            "'rayy'",
            "'inprocess', 'ray'",
        ),
    ],
    "tables of rows": [
        Mistake("an absent file", ROWS + "data.path=no.csv", "path", "no.csv", "that exists"),
        Mistake(
            "an empty file",
            "fedmf simulate table.toml --out new",
            "rows.csv",
            "empty table",
            "must have rows",
            before="Path('rows.csv').write_text('')",
        ),
        Mistake(
            "a header alone",
            "fedmf simulate table.toml --out new",
            "rows.csv",
            "got none",
            "at least one row",
            before="Path('rows.csv').write_text('user,age,height,label')",
        ),
        Mistake(
            "a spreadsheet",
            ROWS + "data.path=new.csv",
            "new.csv",
            "first line is not",
            "Save it as comma-separated",
            before="Path('new.csv').write_bytes(b'PK\\3\\4' + bytes(50))",
        ),
        Mistake(
            "semicolons",
            "fedmf simulate table.toml --out new",
            "rows.csv",
            "';'",
            "separate cells by commas",
            before="edit('rows.csv', ',', ';')",
        ),
        Mistake(
            "a misspelt column",
            ROWS + "data.feature-columns=age,heigth",
            "'heigth'",
            "missing",
            "rows.csv has 'user', 'age', 'height'",
        ),
        Mistake(
            "the label among the features",
            ROWS + "data.feature-columns=age,label",
            "columns",
            "label, label",
            "must have different names",
        ),
        Mistake(
            "class names that no row has",
            ROWS + "data.class-names=No,Yes",
            "No, Yes",
            "got none",
            "Check the spelling",
        ),
        Mistake(
            "a user twice on the list",
            "fedmf simulate table.toml --out new",
            "user_list",
            "'u01' more than once",
            "each user once",
            before="edit('users.txt', 'u02', 'u01')",
        ),
        Mistake(
            "an absent user list",
            ROWS + "data.user-list=no.txt",
            "user_list",
            "no.txt",
            "Write the ids",
        ),
        Mistake(
            "a schema that is none",
            "fedmf init table --schema digits.toml",
            "schema",
            "got data, model",
            "must have a table columns",
        ),
        Mistake(
            "an absent schema",
            "fedmf init table --schema no.toml",
            "no.toml",
            "No such file",
            "fedmf schema TABLE",
        ),
    ],
    "places": [
        Mistake(
            "--out is a run",
            "fedmf simulate digits.toml --out run",
            "output directory",
            "already holds a run",
            "--resume",
        ),
        Mistake(
            "--out is a file",
            "fedmf simulate digits.toml --out rows.csv",
            "rows.csv",
            "it is no directory",
            "must be new or empty",
        ),
        Mistake(
            "--out in a folder that is a file",
            "fedmf simulate digits.toml --out rows.csv/new",
            "rows.csv",
            "[Nn]ot a directory",
            "Choose another place",
        ),
        Mistake(
            "init onto a file",
            "fedmf init digits",
            "digits.toml",
            "exists already",
            "Remove it or choose another",
        ),
        Mistake(
            "init onto a folder",
            "fedmf init flower --output run",
            "run",
            "contains other files",
            "must be new or empty",
        ),
        Mistake("an unknown case", "fedmf init digit", "CASE", "'digit'", "must be one of"),
        Mistake(
            "a full disk",
            "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))\n"
            "try:\n"
            "    code = command('simulate digits.toml --out new'.split())\n"
            "finally:\n"
            "    resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
            "raise SystemExit(code)",
            "ledger.sqlite",
            "disk I/O error",
            "If the disk is full, free it",
            code=74,
            before="import resource",
        ),
        Mistake(
            "Ctrl-C",
            "kill = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
            "threading.Timer(0.5, kill).start()\n"
            "line = 'simulate digits.toml --out new --set cohorts.rounds=8000'\n"
            "raise SystemExit(command(line.split()))",
            "SIGINT",
            "stopped",
            "continue with: fedmf simulate --resume",
            code=130,
            keeps=("new", "marks"),
        ),
        Mistake(
            "marks that cannot be written",
            STATE,
            "rows.csv",
            "not writable",
            "set FEDMF_MARKS",
            code=0,
            before="os.environ['FEDMF_MARKS'] = os.path.abspath('rows.csv')",
        ),
    ],
    "runs that continue": [
        Mistake("no run", "fedmf simulate --resume no", "no", "no such directory", "run directory"),
        Mistake(
            "a stream", "fedmf simulate --resume state", "state", "ledger.sqlite", "run directory"
        ),
        Mistake(
            "another epsilon",
            "fedmf simulate --resume run --set privacy.epsilon=2",
            "privacy.epsilon",
            "is 8.0, not 2.0",
            "Choose another directory",
        ),
        Mistake(
            "a damaged ledger",
            "fedmf simulate --resume run",
            "ledger.sqlite",
            "not a database",
            "restore the whole directory",
            code=3,
            before="Path('run/ledger.sqlite').write_bytes(b'x' * 100)",
        ),
        Mistake(
            "a ledger of another version",
            "fedmf simulate --resume run",
            "ledger.sqlite",
            "is not a fedmf ledger of format",
            "restore the whole directory",
            code=3,
            before=(
                "import sqlite3\n"
                "with sqlite3.connect('run/ledger.sqlite') as ledger:\n"
                "    ledger.execute('PRAGMA user_version = 99')\n"
                "ledger.close()"
            ),
        ),
        Mistake(
            "a ledger that was cut",
            "fedmf account run",
            "ledger.sqlite",
            "malformed",
            "restore the whole directory",
            code=3,
            before="os.truncate('run/ledger.sqlite', 5000)",
            keeps=("run/ledger.sqlite-shm", "run/ledger.sqlite-wal"),
        ),
        Mistake(
            "no noise key",
            "fedmf simulate --resume run",
            "noise.key",
            "No such file",
            "Restore it",
            before="Path('run/noise.key').unlink()",
        ),
        Mistake(
            "a noise key that others can read",
            "fedmf simulate --resume run",
            "noise.key",
            "got 0644",
            "new run with a new key",
            code=3,
            before="os.chmod('run/noise.key', 0o644)",
        ),
        Mistake(
            "an older copy",
            "fedmf simulate --resume older",
            "ledger.sqlite",
            "is an older copy",
            "Continue with the newest",
            code=3,
        ),
        Mistake(
            "a run that another process has open",
            "opened = fedmf.resume(fedmf.load_run('digits.toml'), 'digits-run')\n"
            "raise SystemExit(command(['simulate', '--resume', 'digits-run']))",
            "ledger.sqlite",
            "being written by another process",
            "Wait for it to end",
            code=75,
        ),
    ],
    "streams": [
        Mistake(
            "neither user column nor row level",
            f"fedmf stream --input speeds.csv --columns speed {BUDGET}",
            "--user-column",
            "got neither",
            "--row-level",
        ),
        Mistake(
            "no clip norm",
            "fedmf stream --input speeds.csv --columns speed --row-level --epsilon 8 --delta 1e-5",
            "clip_norm",
            "got none",
            "must be given",
        ),
        Mistake("epsilon 0", NEW + "--epsilon 0", "epsilon", "got 0.0", "must be positive"),
        Mistake("delta 2", NEW + "--delta 2", "delta", "got 2.0", "between 0 and 1"),
        Mistake("clip norm 0", NEW + "--clip-norm 0", "clip_norm", "got 0.0", "must lie in"),
        Mistake(
            "a misspelt column",
            NEW + "--columns speed,lod",
            "'lod'",
            "missing",
            "the input has 'user', 'speed', 'load'",
        ),
        Mistake(
            "a picture as input",
            NEW + "--input image.csv",
            "image.csv",
            "first line is not",
            "UTF-8",
            before="Path('image.csv').write_bytes(b'\\x89PNG\\r\\n' + bytes(99))",
        ),
        Mistake("another first row", NEW + "--from-row 7", "from_row", "got 7", "must be 1"),
        Mistake(
            "blocks that do not sum to d",
            NEW + "--second-moment 3,4",
            "second_moment",
            "got '3,4'",
            "sum to d = 2",
        ),
        Mistake(
            "a share of false alarms above 1",
            NEW + "--alarms new.csv --false-alarms 2",
            "false alarms",
            "got 2.0",
            "between 0 and 1",
        ),
        Mistake(
            "absent rows to score",
            NEW + "--alarms new.csv --score no.csv",
            "--score",
            "got no.csv",
            "that exists",
        ),
        Mistake(
            "another epsilon when continued",
            STATE + "--epsilon 4",
            "epsilon",
            "got 4.0",
            "must be 8.0|another --state-dir",
        ),
        Mistake(
            "another horizon when continued",
            STATE + "--rounds 70",
            "rounds",
            "got 70",
            "must be 60|another --state-dir",
        ),
        Mistake(
            "columns in another order when continued",
            STATE + "--columns load,speed",
            "columns",
            r"got \('load', 'speed'\)",
            "another --state-dir",
        ),
        Mistake(
            "earlier rows were removed",
            STATE,
            "speeds.csv|input|row",
            "got|fewer|before|less",
            "must|--from-row",
            before="Path('speeds.csv').write_text(Path('speeds.csv').read_text()[:200])",
        ),
        Mistake(
            "a row of another dimension",
            "stream().push([1, 2, 3], 'ann')",
            r"x \(row\)",
            r"shape \(3,\)",
            "must be 2 numbers",
            keeps=("new", "marks"),
        ),
        Mistake(
            "rows None",
            "stream().push_many(None, ['ann'])",
            "rows",
            "got NoneType",
            "must be a table",
            keeps=("new", "marks"),
        ),
        Mistake(
            "a user too often",
            "pushed = stream()\npushed.push([0, 1], 'ann')\npushed.push([0, 1], 'ann')",
            "'ann'",
            "took part in round 1",
            r"b \(min_separation\) is 20",
            code=3,
            keeps=("new", "marks"),
        ),
        Mistake(
            "a row past the horizon",
            "pushed = stream(rounds=1)\npushed.push([0, 1], 'ann')\npushed.push([0, 1], 'bob')",
            r"n \(rounds\) = 1",
            "all steps were taken",
            "start another stream",
            code=3,
            keeps=("new", "marks"),
        ),
        Mistake(
            "dimension as text",
            "stream(dimension='2')",
            "dimension",
            "got '2'",
            "valid integer",
        ),
        Mistake(
            "no user",
            "stream().push([0, 1], None)",
            "user",
            "got None",
            "non-empty string",
            keeps=("new", "marks"),
        ),
    ],
    "calendar releases": [
        Mistake("a month", WEEKS + "--release-every 1m", "release_every", "got '1m'", "h, d or w"),
        Mistake("no length", WEEKS + "--release-every 0w", "release_every", "got '0w'", "'1w'"),
        Mistake("a number", WEEKS + "--release-every 7", "release_every", "got 7", "'1w'"),
        Mistake(
            "a start that is no time", WEEKS + "--start soon", "start", "got 'soon'", "2026-01-31"
        ),
        Mistake("no start", "weekly(start=None)", "start", "got None", "such as 2026-01-31"),
        Mistake(
            "a missing time column",
            WEEKS + "--time-column when",
            "'when'",
            "missing",
            "the input has 'user', 'time'",
        ),
        Mistake(
            "rows without times",
            "weekly().add([[0.1]], ['ann'])",
            "times",
            "got 0",
            "must be 1",
            keeps=("new", "marks"),
        ),
        Mistake(
            "more weeks than planned",
            "opened = weekly()\nfor week in range(5): opened.close_period()",
            r"n \(rounds\) = 4",
            "all were released",
            "start another stream",
            code=3,
            keeps=("new", "marks"),
        ),
        Mistake(
            "until without a time column",
            NEW + "--until 2026-02-01",
            "--until",
            "alone",
            "needs --time-column",
        ),
        Mistake(
            "rows pushed one by one",
            "weekly().push([0.1], 'ann')",
            "push",
            "releases periods",
            "Use add and close_period",
            keeps=("new", "marks"),
        ),
    ],
    "silos": [
        Mistake(
            "a misspelt key",
            FLOWER + "silo('training', 'trainin')",
            r"\[silo\]",
            "got 'trainin'",
            "must have the keys training, directory",
        ),
        Mistake(
            "a directory that is not absolute",
            FLOWER + "silo(os.getcwd() + '/', '')",
            "directory",
            "got 'silo'",
            "must be absolute",
        ),
        Mistake(
            "two people with one name",
            FLOWER + "silo(users=['a', 'a', 'b', 'c'])",
            "users",
            "'a' more than once",
            "each user once",
        ),
        Mistake("no training", FLOWER + "silo(train=None)", "train", "got NoneType", "function"),
        Mistake(
            "another training is asked for",
            FLOWER + "silo().answer('lungs', 1, model)",
            "training",
            "got 'lungs'",
            "must be 'hearts'",
        ),
        Mistake(
            "a model of another shape",
            FLOWER + "silo().answer('hearts', 1, {'w': np.zeros(3, np.float32)})",
            "'w'",
            r"shape \(3,\)",
            r"shape \(2,\)",
        ),
        Mistake(
            "a node without the silo's file",
            FLOWER + "from fedmf.flower.silo import client\n"
            "inner = FedAvg(min_train_nodes=1, min_available_nodes=1)\n"
            "sums = SiloSums(inner, training='hearts', clip_norm=1.0, users_per_round=2)\n"
            "grid = InProcessGrid(client, nodes=1)\n"
            "sums.start(grid, ArrayRecord(nn.Linear(2, 2).state_dict()), num_rounds=1)",
            "silo",
            "got None",
            "--node-config. must be the path",
            code=0,
        ),
        Mistake(
            "a server with clip norm -1",
            FLOWER + "SiloSums(FedAvg(), training='t', clip_norm=-1, users_per_round=4)",
            "clip_norm",
            "got -1",
            "positive",
        ),
        Mistake(
            "a server with no users",
            FLOWER + "SiloSums(FedAvg(), training='t', clip_norm=1, users_per_round=0)",
            "users_per_round",
            "got 0",
            "greater than or equal to 1",
        ),
    ],
    "Flower apps": [
        Mistake(
            "a median", FLOWER + "strategy(FedMedian())", "strategy", "FedMedian", "FedAvg, FedAvgM"
        ),
        Mistake(
            "users as text", FLOWER + "strategy(users='10')", "users", "got '10'", "valid integer"
        ),
        Mistake(
            "a cohort larger than the population",
            FLOWER + "strategy(users=3)",
            "cohort size",
            "got 5",
            r"1\.\.3",
        ),
        Mistake(
            "a state dict as the model",
            FLOWER + "start(strategy(), arrays=nn.Linear(2, 2).state_dict())",
            "initial_arrays",
            "got OrderedDict",
            "must be an ArrayRecord",
        ),
        Mistake(
            "BatchNorm in the model",
            FLOWER + "start(strategy(), arrays=ArrayRecord(nn.BatchNorm1d(2).state_dict()))",
            "running_mean",
            "mix users' examples",
            "use GroupNorm",
        ),
        Mistake(
            "NaN in the model",
            FLOWER + "layer = nn.Linear(2, 2)\nlayer.weight.data.fill_(np.nan)\n"
            "start(strategy(), arrays=ArrayRecord(layer.state_dict()))",
            "'weight'",
            "NaN",
            "must be finite",
        ),
        Mistake(
            "fewer nodes than users",
            FLOWER + "start(strategy(), nodes=7)",
            "users=10",
            "7 are connected",
            "needs as many nodes",
            keeps=("new", "marks"),
        ),
        Mistake(
            "more rounds than planned",
            FLOWER + "start(strategy(), num_rounds=9)",
            "num_rounds",
            "got 9",
            "at most the horizon n=4",
            keeps=("new", "marks"),
        ),
        Mistake(
            "user_id_mod forgotten",
            FLOWER + "start(strategy(users=ClientReportedIdentity(list('abcdefghij'))))",
            "ClientApp",
            "failed the handshake",
            r"mods=\[user_id_mod\(\)\]",
            keeps=("new", "marks"),
        ),
        Mistake(
            "a user twice on the list",
            FLOWER + "strategy(users=ClientReportedIdentity(['a', 'a']))",
            "user_list",
            "'a' more than once",
            "each user once",
        ),
        Mistake(
            "a statement before the start",
            FLOWER + "strategy().statement()",
            "statement",
            "needs a started run",
            "call start",
        ),
    ],
    "metrics of clients": [
        Mistake("bound 0", "fedmf.ClientMetric(bound=0)", "bound", "got 0", "greater than 0"),
        Mistake("a name of two words", "fedmf.ClientMetric('a b')", "metric", "'a b'", "letters"),
        Mistake(
            "a name twice",
            "run(extra_releases=(fedmf.ClientMetric('a'), fedmf.ClientMetric('a')))",
            "statistics",
            "got client_a, client_a",
            "different names",
        ),
        Mistake(
            "no budget",
            "fedmf.ClientMetric(budget_share=0)",
            "budget_share",
            "got 0",
            "greater than 0",
        ),
        Mistake(
            "more than the budget",
            "half = [fedmf.ClientMetric(name, budget_share=0.6) for name in 'ab']\n"
            "run(extra_releases=tuple(half))",
            "budget_share",
            "client_a 0.6, client_b 0.6",
            "must be below 1",
        ),
        Mistake(
            "nothing held out",
            "run(extra_releases=(fedmf.ClientMetric(),))",
            "held_out",
            "got 0",
            "must be above 0",
        ),
        Mistake(
            "a statistic that is not in a tuple",
            "run(extra_releases=fedmf.ClientMetric())",
            "extra_releases",
            "got ClientMetric",
            "must be a tuple",
        ),
    ],
    "Python": [
        Mistake("a run by name", "fedmf.simulate('digits.toml', 'new')", "run", "str", "load_run"),
        Mistake(
            "a wrong keyword",
            "fedmf.LocalSGD(lr=0.1)",
            "LocalSGD",
            "unexpected keyword argument",
            "'lr'",
            code=1,
        ),
        Mistake("a number as privacy", "run(privacy=8.0)", "privacy", "got float", "UserLevel"),
        Mistake("a name as server", "run(server='sgd')", "server", "got str", "fedmf.Sgd"),
        Mistake(
            "a module as task", "run(task=nn.Linear(2, 2))", "task", "got Linear", "classification"
        ),
        Mistake(
            "an array as mechanism", "run(mechanism=np.eye(4))", "mechanism", "ndarray", "must be"
        ),
        Mistake(
            "one name as a list",
            "fedmf.design(fedmf.Participation(8, 2, 4), mechanisms='bisr')",
            "mechanisms",
            "the string 'bisr'",
            "list of names",
        ),
        Mistake(
            "another device",
            "fedmf.simulate(run(), 'new', device='gpu')",
            "device",
            "got 'gpu'",
            "'cpu' or 'cuda'",
        ),
        Mistake("live BatchNorm", "task(nn.BatchNorm1d(2))", "model", "BatchNorm1d", "GroupNorm"),
        Mistake(
            "BatchNorm set to training again",
            "net = nn.Sequential(fedmf.freeze(nn.BatchNorm1d(2)), nn.Linear(2, 2))\n"
            "task(net.train())",
            "model",
            "BatchNorm1d '0' in training mode",
            "Freeze it",
        ),
        Mistake(
            "everything frozen",
            "task(fedmf.freeze(nn.Linear(2, 2)))",
            "model",
            "all of them are frozen",
            "Leave a part to train",
        ),
        Mistake(
            "parameters are frozen, not a module",
            "fedmf.freeze(nn.Linear(2, 2).parameters())",
            "module",
            "got generator",
            "must be a torch module",
            code=1,
        ),
        Mistake(
            "NaN weights",
            "net = nn.Linear(2, 2)\nnet.weight.data.fill_(np.nan)\ntask(net)",
            "'weight'",
            "NaN",
            "must be finite",
        ),
        Mistake(
            "float64 weights",
            "task(nn.Linear(2, 2).double())",
            "'weight'",
            "another type",
            r"module\.float\(\)",
        ),
        Mistake(
            "too many inputs",
            "fedmf.simulate(run(task=task(nn.Linear(3, 2))), 'new')",
            "model",
            "cannot be multiplied",
            r"must take the declared features, \(2,\)",
        ),
        Mistake(
            "too few outputs",
            "fedmf.simulate(run(task=task(nn.Linear(2, 1))), 'new')",
            "loss",
            "out of bounds",
            "must take outputs",
        ),
        Mistake(
            "no user column", "data(user='usr')", "'usr'", "must occur once", "has the columns"
        ),
        Mistake(
            "user ids twice",
            "data(user_list=['u00', 'u00'])",
            "user_list",
            "'u00' more than",
            "each user once",
        ),
        Mistake(
            "an unknown owner of the test part",
            "data(test_owner='training_users')",
            "test_owner",
            "got 'training_users'",
            "'training users'",
        ),
        Mistake("no user list", "data(user_list=None)", "user_list", "got None", "from-data"),
        Mistake("one class", "data(classes=1)", "classes", "got 1", "at least 2"),
        Mistake(
            "text as a feature",
            "data(frame().assign(age='old'))",
            "age",
            "no number",
            "columns of numbers",
        ),
        Mistake(
            "no frame",
            "fedmf.Dataset.from_frame(None, user='user', label='label')",
            "frame",
            "got NoneType",
            "must be a data frame",
            code=1,
        ),
        Mistake(
            "arrays of different length",
            "fedmf.Dataset.from_arrays(np.zeros((4, 2)), [0] * 3, ['a'] * 4, user_list=['a'])",
            "x, y and users",
            r"got \[4, 3, 4\]",
            "same length",
        ),
        Mistake(
            "an array of text",
            "fedmf.Dataset.from_arrays(np.array([['a']]), [0], ['a'], user_list=['a'], classes=2)",
            "x and y",
            "got array",
            "of numbers",
        ),
        Mistake(
            "complex numbers",
            "fedmf.Dataset.from_arrays([[1j]], [0], ['a'], user_list=['a'], classes=2)",
            "x and y",
            "complex",
            "real numbers",
        ),
        Mistake(
            "a matrix by file name",
            "fedmf.import_strategy('C.npy', fedmf.Participation(3, 1, 3))",
            "strategy",
            "got 'C.npy'",
            "np.load",
        ),
        Mistake(
            "a matrix that is not triangular",
            "fedmf.import_strategy(np.ones((3, 3)), fedmf.Participation(3, 1, 3))",
            r"C \(matrix\)",
            r"1.0 at \(0, 1\)",
            "lower triangular",
        ),
    ],
    "predictions and models": [
        Mistake(
            "a run of another kind",
            "fedmf predict digits-run --input rows.csv",
            "data.kind",
            "has others",
            "load_model",
        ),
        Mistake(
            "missing columns",
            "fedmf predict run --input speeds.csv",
            "'age'",
            "missing",
            "speeds.csv has",
        ),
        Mistake(
            "a frame instead of a file",
            "fedmf.predict('run', frame())",
            "rows",
            "got DataFrame",
            "to_csv",
            code=1,
        ),
        Mistake(
            "another suffix",
            "fedmf predict run --input rows.csv --output p.xlsx",
            "output",
            "got 'p.xlsx'",
            r"\.csv or \.parquet",
        ),
        Mistake(
            "a model in a text file", "fedmf export run --output m.txt", "file", "m.txt", r"\.pt"
        ),
    ],
    "privacy reports": [
        Mistake(
            "no such directory", "fedmf account no", "no", "no such directory", "run directory"
        ),
        Mistake("a folder without a run", "fedmf account .", ".", "no ledger", "run directory"),
        Mistake(
            "delta for one run", "fedmf account run --delta 1e-6", "--delta", "got one", "several"
        ),
        Mistake("a delta of 2", "fedmf account run state --delta 2", "delta", "got 2.0", "0 and 1"),
        Mistake("a budget of 0", "fedmf account run --budget 0", "budget", "got 0.0", "positive"),
        Mistake(
            "a letter in a format of its own",
            "fedmf account run --public letter.docx",
            "--public",
            "got letter.docx",
            r"\.html",
        ),
        Mistake(
            "a letter of a run without privacy",
            "fedmf account none-run --public letter.html",
            "letter",
            "has no noise",
            r"Use \.txt or \.json",
        ),
        Mistake(
            "a letter onto a file",
            "fedmf account run --public users.txt",
            "users.txt",
            "exists already",
            "choose another",
        ),
        Mistake(
            "failures that cannot be read",
            "fedmf account run",
            "failures.jsonl",
            "Expecting value",
            "Move it away",
            before="Path('run/failures.jsonl').write_text('x\\n')",
        ),
    ],
    "designs": [
        Mistake("epsilon alone", DESIGN + "--epsilon 8", "delta", "got None", "together"),
        Mistake(
            "epsilon -1", DESIGN + "--epsilon -1 --delta 1e-5", "epsilon", "got -1", "positive"
        ),
        Mistake("delta 1", DESIGN + "--epsilon 8 --delta 1", "delta", "got 1.0", "between 0 and 1"),
        Mistake("half a round", DESIGN + "--rounds 1.5", "--rounds", "'1.5'", "valid integer"),
        Mistake(
            "k beyond n", DESIGN + "--max-participations 9", "max_participations", "k=9", "k=2"
        ),
        Mistake("no noise", DESIGN + "--noise-multiplier 0", "noise_multiplier", "0.0", "positive"),
        Mistake("-2 silos", DESIGN + "--silos -2", "--silos", "-2", "x>=1"),
        Mistake(
            "a parameter of another mechanism",
            DESIGN + "--param lambda=0.5",
            "lambda",
            "lambda=0.5",
            "bisr takes bands",
        ),
        Mistake(
            "an unknown workload", DESIGN + "--workload sum", "workload", "'sum'", "one of prefix"
        ),
        Mistake(
            "a picture in a format of its own", DESIGN + "--plot p.gif", "--plot", "p.gif", r"\.png"
        ),
        Mistake(
            "a word that no key has", "fedmf options epsilom", "'epsilom'", "no key", "lists all"
        ),
        Mistake(
            "an unknown command", "fedmf simulat", "'simulat'", "No such command", "'simulate'"
        ),
    ],
    "sweeps": [
        Mistake(
            "an unknown axis",
            "fedmf sweep sweep.toml --dry-run",
            "privacy.epsilonn",
            "unknown",
            "did you mean 'privacy.epsilon'",
            before="edit('sweep.toml', 'privacy.epsilon', 'privacy.epsilonn')",
        ),
        Mistake(
            "an empty axis",
            "fedmf sweep sweep.toml --dry-run",
            "privacy.epsilon",
            r"got \[\]",
            "must list different values",
            before="edit('sweep.toml', '[2.0, 8.0]', '[]')",
        ),
        Mistake(
            "an axis that is a number",
            "fedmf sweep sweep.toml --dry-run",
            "privacy.epsilon",
            "got 2.0",
            "must be a list",
            before="edit('sweep.toml', '[2.0, 8.0]', '2.0')",
        ),
        Mistake(
            "no seeds",
            "fedmf sweep sweep.toml --dry-run",
            "seeds",
            r"got \[\]",
            "1 or more different",
            before="edit('sweep.toml', '[0, 1]', '[]')",
        ),
        Mistake(
            "a variant that is none",
            "fedmf sweep sweep.toml --dry-run --variant dense",
            "variant",
            "got 'dense'",
            "'plain', 'banded'",
        ),
        Mistake(
            "a configuration as the sweep",
            "fedmf sweep digits.toml --dry-run",
            "'data'",
            "unknown key",
            "it has base, seeds",
        ),
    ],
}


def write_files(folder: Path) -> None:
    """Write the tables and configurations that mistakes are made with."""
    rows = ["user,age,height,label"]
    speeds = ["user,speed,load"]
    weeks = ["user,time,speed"]
    for i in range(200):
        rows.append(f"u{i % 20:02},{i % 7 - 3},{i % 5 - 2},{('no', 'yes')[i % 3 % 2]}")
    for i in range(40):
        speeds.append(f"u{i % 10},{i % 7 / 9},{i % 5 / 9}")
        weeks.append(f"u{i % 10},2026-01-{5 + i // 2:02},{i % 7 / 9}")
    files = {
        "rows.csv": "\n".join(rows) + "\n",
        "speeds.csv": "\n".join(speeds) + "\n",
        "weekly.csv": "\n".join(weeks) + "\n",
        "users.txt": "".join(f"u{i:02}\n" for i in range(20)),
        "table.toml": TABLE,
        "digits.toml": DIGITS,
        "sweep.toml": SWEEP,
        "silo.toml": SILO.replace("HERE", str(folder)),
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def write_runs() -> None:
    """Write the runs and streams that mistakes are made with, and an older copy of a run."""
    for line in (
        "simulate table.toml --out run",
        "simulate digits.toml --out digits-run",
        "simulate digits.toml --out none-run --set privacy.kind=none",
        STATE.removeprefix("fedmf "),
    ):
        code, _, shown = spoken(lambda line=line: run_command(shlex.split(line)))
        assert code == 0, shown
    run = fedmf.load_run("digits.toml")
    fedmf.simulate(run, "newest", on_round=lambda record: record.rounds == 2, progress=False)
    shutil.copytree("newest", "older")
    fedmf.simulate(run, "newest", progress=False)


def spoken(act: Any) -> tuple[object, str, str]:
    """Return what a function returns, and what it writes to standard output and error."""
    output = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        result = act()
    return result, output.getvalue(), errors.getvalue()


def outcome(mistake: Mistake, names: dict[str, Any]) -> tuple[object, list[str], str]:
    """Make a mistake; returns the exit code, the lines of the error, and a traceback's error."""
    raised = ""

    def act() -> object:
        if mistake.doing.startswith("fedmf "):
            return run_command(shlex.split(mistake.doing)[1:])
        exec(mistake.doing, names)
        return 0

    def caught() -> object:
        nonlocal raised
        try:
            return act()
        except SystemExit as ended:
            return ended.code
        except Exception as error:
            if mistake.doing.startswith("fedmf "):
                raised = repr(error)
                return exit_code(error)
            print(f"fedmf: {error}", file=sys.stderr)
            return exit_code(error)

    code, _, shown = spoken(caught)
    return code, shown.splitlines(), raised


def faults(mistake: Mistake, code: object, lines: list[str], raised: str) -> Iterator[str]:
    """Yield what is wrong with a refusal."""
    if raised:
        yield f"traceback of {raised}"
    if code != mistake.code:
        yield f"exit code {code}, not {mistake.code}"
    errors = [line for line in lines if line.startswith("fedmf: ")]
    if not mistake.code:
        yield from ["an error where a warning is enough"] * len(errors)
    elif len(errors) != 1 or lines[-1] != errors[0]:
        yield f"{len(lines)} lines, {len(errors)} of them an error"
    elif mistake.doing.startswith("fedmf ") and len(lines) > MOST_LINES:
        yield f"{len(lines)} lines"
    for part in ("name", "cause", "remedy"):
        pattern = getattr(mistake, part)
        if not re.search(pattern, " ".join(lines)):
            yield f"no {part} ({pattern})"


def tree(folder: Path) -> set[str]:
    """Return all files and directories of a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def left_behind(before: set[str], after: set[str], keeps: tuple[str, ...]) -> list[str]:
    """Return what is new, other than what may be kept."""
    new = sorted(after - before)
    return [name for name in new if not name.startswith(keeps or ("\n",))]


def made(mistake: Mistake, folder: Path, original: Path) -> tuple[list[str], object, str]:
    """Make a mistake in a copy of the directory; returns faults, exit code and message."""
    os.chdir(folder.parent)
    shutil.rmtree(folder)
    shutil.copytree(original, folder)
    os.chdir(folder)
    os.environ["FEDMF_MARKS"] = str(folder / "marks")
    os.environ.pop("RAY_ADDRESS", None)
    sys.modules.pop("helper", None)
    names: dict[str, Any] = {"__name__": "mistake"}
    exec(PRELUDE, names)
    exec(mistake.before, names)
    before = tree(folder)
    code, lines, raised = outcome(mistake, names)
    found = list(faults(mistake, code, lines, raised))
    for name, value in names.items():
        if name in ("pushed", "opened"):
            value.close()
    new = left_behind(before, tree(folder), mistake.keeps)
    if new:
        found.append(f"left behind: {', '.join(new[:3])}")
    message = lines[-1].removeprefix("fedmf: ") if lines else ""
    return found, code, message


def main() -> int:
    """Make the mistakes, print a table and return the number of failures."""
    words = sys.argv[1:]
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", COLUMNS="100")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.perf_counter()
    failed = 0
    count = 0
    with tempfile.TemporaryDirectory(prefix="fedmf-mistakes-") as scratch:
        folder = Path(scratch) / "here"
        original = Path(scratch) / "original"
        folder.mkdir()
        os.environ.update(FEDMF_MARKS=str(folder / "marks"), FEDMF_CACHE=str(Path(scratch) / "c"))
        os.chdir(folder)
        write_files(folder)
        spoken(write_runs)
        shutil.copytree(folder, original)
        for kind, mistakes in MISTAKES.items():
            chosen = [each for each in mistakes if all(word in f"{kind} {each}" for word in words)]
            if chosen:
                print(f"\n{kind}\n")
            for mistake in chosen:
                found, code, message = made(mistake, folder, original)
                count += 1
                failed += bool(found)
                mark = "FAILS" if found else "ok"
                print(f"{mark:<6}{mistake.what}: exit code {code}\n      {message}")
                for fault in found:
                    print(f"      - {fault}")
        os.chdir("/")
    seconds = time.perf_counter() - began
    print(f"\n{count} mistakes, {failed} fail, {seconds:.0f} s")
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
