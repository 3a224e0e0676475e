"""Damaged and forged records: refused in one line, or nothing differs. Never other noise or another ε."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmf.errors import ConfigError, LedgerError
from fedmf.records import Seal, load_key, unguarded
from fedmf.records.ledger.schema import LEDGER
from fedmf.runs import Session, account, load_model
from fedmf.runs.directory import RunDirectory
from fedmf.runs.recorded import opened_evidence
from fedmf.streaming import StateError, open_run

FOLDER = Path(__file__).resolve().parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
import bit_flips as flips  # noqa: E402  # pyright: ignore[reportMissingImports]
from forged_records import forge_ledger, ledgers_forged, streams_forged  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))

#: Its fixtures are made once, by one worker.


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a secret key, stopped after 6 of 12 rounds."""
    return flips.make_run(tmp_path_factory.mktemp("secret"))


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a public seed: anybody can write codes that fit."""
    return flips.make_run(tmp_path_factory.mktemp("public"), seed=7)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flips.make_stream(tmp_path_factory.mktemp("stream"))


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    def copied(made: Path) -> Path:
        return Path(shutil.copytree(made, tmp_path / made.name))

    return copied


@pytest.mark.parametrize(
    ("which", "file", "tries"),
    [
        ("secret", "ledger.sqlite", 40),
        ("secret", "evaluation.sqlite", 15),
        ("secret", "noise.key", 10),
        ("secret", "user-budgets", 10),
        ("secret", "ledger.sqlite-tail-0000001", 15),
        ("secret", "evaluation.sqlite-tail-0000001", 10),
        ("stream", "state/state.sqlite", 60),
        ("stream", "state/releases.bin", 25),
        ("stream", "state/noise.key", 10),
    ],
)
def test_no_flipped_bit_goes_unnoticed(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, file: str, tries: int
) -> None:
    draw, made = random.Random(3), request.getfixturevalue(which)
    outcome = flips.stream_outcome if which == "stream" else flips.RunOutcome()
    found = list(flips.trials(made, outcome, lambda p: flips.flip(p / file, draw), tries, tmp_path))
    assert [row for row in found if row[1] not in ("same", "refused")] == []
    if (
        "sqlite" not in file
    ):  # a page of SQLite has bytes that mean nothing, states of earlier rounds mean nothing
        assert {row[1] for row in found} == {"refused"}


def test_no_forged_value_of_a_header_goes_unnoticed(secret: Path, stream: Path, tmp_path: Path) -> None:
    """The chain fits, the codes cannot."""
    draw = random.Random(4)
    for made, outcome, forge in (
        (secret, flips.RunOutcome(), ledgers_forged(draw)),
        (stream, flips.stream_outcome, streams_forged(draw)),
    ):
        for row in flips.trials(made, outcome, forge, 15, tmp_path):
            assert row[1] == "refused", row


def edited(*way: str | int, value: object) -> Callable[[str], str]:
    def edit(text: str) -> str:
        document = inner = json.loads(text)
        for key in way[:-1]:
            inner = inner[key]
        assert inner[way[-1]] != value
        inner[way[-1]] = value
        return json.dumps(document, ensure_ascii=False)

    return edit


#: Figures of a header that follow from others: forged with the key, they contradict what they follow from.
FIGURES = {
    "noise_multiplier": ("plan", "noise_multiplier"),
    "sensitivity": ("plan", "sensitivity", "value"),
    "kind of sensitivity": ("plan", "sensitivity", "kind"),
    "case of sensitivity": ("plan", "sensitivity", "case"),
    "inflation": ("plan", "inflation"),
    "noise_multiplier of evaluations": ("plan", "evaluation", "noise_multiplier"),
    "sensitivity of evaluations": ("plan", "evaluation", "sensitivity", "value"),
    "share of evaluations": ("plan", "evaluation", "share"),
    "range of the loss in evaluations": ("plan", "evaluation", "ranges"),
    "participation": ("plan", "participation", "max_participations"),
    "clipped_by": ("clipped_by",),
    "key_public": ("key_public",),
}
OTHER = {
    "kind": "upper_bound",
    "case": "none",
    "clipped_by": "server",
    "max_participations": 1,
    "key_public": False,
    "ranges": [["loss", 0.0, 6.0], ["accuracy", 0.0, 1.0]],
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_contradicts_the_header_is_refused_whoever_wrote_it(
    public: Path, copy: Callable[[Path], Path], name: str
) -> None:
    """Even with chain and codes that fit, as the key of a public seed allows."""
    path = copy(public)
    seal = Seal.of(LEDGER, load_key(path / "noise.key"))
    way = FIGURES[name]
    with opened_evidence(path) as evidence:
        header, *_ = evidence.records
        value = header.to_dict()
    for key in way:
        value = value[key]  # type: ignore[index]
    forged = OTHER[way[-1]] if way[-1] in OTHER else value * 1.01  # type: ignore[operator]
    forge_ledger(path / "ledger.sqlite", edited(*way, value=forged), seal)
    if name == "key_public":  # the key itself says so first
        for reading in (account, Session.resume, load_model):
            with pytest.raises(LedgerError, match=r"^key_public .* that of .*, True; got False") as caught:
                reading(path)
            assert "\n" not in str(caught.value)
        (path / "noise.key").unlink()
    for reading in (account, load_model) if name == "key_public" else (account, Session.resume, load_model):
        with pytest.raises(LedgerError, match=f"^{name} of the header is .* follows") as caught:
            reading(path)
        assert "\n" not in str(caught.value)


def test_more_noise_in_the_header_than_its_epsilon_asks_for_is_refused_without_any_key(
    secret: Path, copy: Callable[[Path], Path]
) -> None:
    """The forged header that once printed ε 2.50 where 7.81 was true."""
    path = copy(secret)
    (path / "noise.key").unlink()
    account(path)  # the chain alone is checked
    forge_ledger(path / "ledger.sqlite", edited("plan", "noise_multiplier", value=1.6))
    with pytest.raises(LedgerError, match=r"^noise_multiplier of the header is 1\.6; from the rest"):
        account(path)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("mechanism", "first_std"), 0.1),
        (("mechanism", "noise_multiplier"), 0.1),
        (("mechanism", "sensitivity", "value"), 0.1),
        (("settings", "epsilon"), 1.0),
        (("settings", "max_participations"), 2),
        (("settings", "adjacency"), "replace-one"),
    ],
)
def test_a_figure_that_contradicts_a_streams_plan_is_refused(
    stream: Path, way: tuple[str, ...], value: object
) -> None:
    from fedmf.streaming.plans import plan_from_dict

    with sqlite3.connect(stream / "state" / "state.sqlite") as connection:
        ((text,),) = connection.execute("SELECT json FROM plan")
    plan_from_dict(json.loads(text)).check()
    with pytest.raises(ValueError, match=r"of the stream's plan is .* follows"):
        plan_from_dict(json.loads(edited(*way, value=value)(text))).check()


def test_rows_cut_off_the_end_of_a_ledger_are_noticed(secret: Path, copy: Callable[[Path], Path]) -> None:
    """The checkpoint that the last row names was tidied away; a copy of it is not the newest either."""
    path = copy(secret)
    ledger = path / "ledger.sqlite"
    with sqlite3.connect(ledger) as connection:
        (drop,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'rounds_delete'").fetchone()
        connection.execute("DROP TRIGGER rounds_delete")
        connection.execute("DELETE FROM rounds WHERE round = 5")
        connection.execute(drop)
    connection.close()
    behind = "6 rounds .* of which it holds 5: it is a copy or a restored backup; .*last state missing"
    with pytest.raises(LedgerError, match=f"cannot be gone on with: .*{behind}"):
        RunDirectory.open(path)
    with unguarded():  # as on another machine
        for reading in (RunDirectory.open, Session.resume):
            with pytest.raises(LedgerError, match=r"cannot be gone on with: .*last state missing"):
                reading(path)
        with pytest.raises(LedgerError, match=r"cannot be exported: .*last state missing"):
            load_model(path)
    with pytest.raises(LedgerError, match=f"cannot be exported: .*{behind}"):
        load_model(path)


def test_a_checkpoint_of_another_branch_is_refused(secret: Path, tmp_path: Path) -> None:
    """It is whole and its digest is right, and it follows a record that this ledger does not hold."""
    from fedmf.records import without_head

    with opened_evidence(secret) as evidence:
        _, ledger, _ = evidence.records
        assert without_head({"t": 1, "head": ledger.head().hex()}, ledger) == {"t": 1}
        with pytest.raises(LedgerError, match=r"follows a record that the ledger does not hold"):
            without_head({"t": 1, "head": "00" * 32}, ledger)


def test_budgets_of_users_are_those_the_run_began_with(secret: Path, copy: Callable[[Path], Path]) -> None:
    path = copy(secret)
    (path / "user-budgets").write_text("user,epsilon\nuser-00,500\n")
    with RunDirectory.open(path) as directory, pytest.raises(ConfigError, match="not those the run began"):
        directory.budgets()


@pytest.mark.parametrize(
    ("table", "row"),
    [("users", "user = 'u3'"), ("openings", "number = 0"), ("blocks", "first = 0"), ("position", "id = 0")],
)
def test_rows_of_a_stream_cannot_be_taken_out(
    stream: Path, copy: Callable[[Path], Path], table: str, row: str
) -> None:
    path = copy(stream)
    with sqlite3.connect(path / "state" / "state.sqlite") as connection:
        assert connection.execute(f"DELETE FROM {table} WHERE {row}").rowcount == 1
    connection.close()
    with (
        pytest.raises(StateError, match=r"not as it was committed|has no position|lacks a block"),
        open_run(path / "state", flips.SETTINGS, path / "rows.csv", path / "again.jsonl"),
    ):
        pass


@pytest.mark.parametrize("whole", [False, True])
def test_an_earlier_position_cannot_be_put_back_alone(tmp_path: Path, whole: bool) -> None:
    """Without its blocks it does not end where they do; with them it does not precede the next opening."""
    path = flips.make_stream(tmp_path)
    database, lines = path / "state" / "state.sqlite", (path / "rows.csv").read_text().splitlines()
    connection = sqlite3.connect(database)
    tables = ("position", "users", "blocks")
    saved = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    for more in range(2 if whole else 1):
        lines += [f"0.1,0.2,0.3,new{more}-{i}" for i in range(4)]
        (path / "rows.csv").write_text("\n".join(lines) + "\n")
        with open_run(path / "state", flips.SETTINGS, path / "rows.csv", path / "out.jsonl") as (run, reader):
            run.feed(reader)
            assert len(run.state.openings()) == more + 2
    for name in tables if whole else tables[:2]:
        connection.execute(f"DELETE FROM {name}")
        marks = ",".join("?" * len(saved[name][0]))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", saved[name])
    connection.commit()
    connection.close()
    with pytest.raises(StateError, match=r"not as it was committed: (blocks|an opening): (they|it) do"):
        flips.stream_outcome(path)


def test_a_trigger_or_table_of_its_own_is_refused(
    secret: Path, stream: Path, copy: Callable[[Path], Path]
) -> None:
    for path, file, error in (
        (copy(secret), "ledger.sqlite", LedgerError),
        (copy(stream), "state/state.sqlite", StateError),
    ):
        with sqlite3.connect(path / file) as connection:
            connection.execute("CREATE TABLE mine(x)")
        connection.close()
        with pytest.raises(error, match="schema was altered: it has tables"):
            account(path) if error is LedgerError else flips.stream_outcome(path)


def test_nothing_published_shows_a_chain_value_or_a_digest_of_secrets(secret: Path, stream: Path) -> None:
    """An open chain would let guesses of cohorts be tested."""
    secrets: set[str] = set()
    for file in (secret / "ledger.sqlite", secret / "evaluation.sqlite", stream / "state" / "state.sqlite"):
        with sqlite3.connect(file) as connection:
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                for row in connection.execute(f"SELECT * FROM {name}").fetchall():
                    secrets |= {value.hex() for value in row if isinstance(value, bytes) and len(value) == 32}
        connection.close()
    with opened_evidence(secret) as evidence:
        header, ledger, _ = evidence.records
        checkpoint = ledger.checkpoint()
        assert checkpoint is not None
        secrets |= {checkpoint[2], header.budgets}
    assert len(secrets) > 30
    statement = account(secret)
    shown = [json.dumps(statement.to_dict()), json.dumps(statement.public()), statement.render_text()]
    shown += [p.read_text(errors="replace") for p in secret.glob("statement*")]
    shown.append((secret / "metrics.parquet").read_bytes().decode("latin-1"))
    with open_run(stream / "state", flips.SETTINGS, stream / "rows.csv", stream / "again.jsonl") as (run, _):
        shown.append(json.dumps(run.conclude()))
    shown.append((stream / "again.jsonl").read_text())
    for text in shown:
        assert not any(value in text for value in secrets)
