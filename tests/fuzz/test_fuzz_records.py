"""Files with damaged bytes, headers with altered values: refused in one line, or whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import altered, damaged, fuzzed, judged
from support.headers import make_header
from support.small_runs import run_small, small_run
from support.streams import BUDGET, run_once, sample, write_rows

from fedmf import account
from fedmf.errors import ConfigError, LedgerError
from fedmf.runs.header import RunHeader
from fedmf.runs.session import Session
from fedmf.streaming.session import open_run
from fedmf.streaming.settings import Settings

HEADER = json.loads(json.dumps(make_header().to_dict()))
SETTINGS = Settings(**BUDGET, rounds=12, user_column="user", max_participations=3, min_separation=4)


@fuzzed(400)
@given(altered(HEADER))
def test_headers_with_altered_values(values: dict[str, Any]) -> None:
    header = judged(lambda: RunHeader.from_dict(values), ValueError)
    if header is not None:
        again = RunHeader.from_dict(json.loads(json.dumps(header.to_dict())))
        assert json.dumps(again.to_dict()) == json.dumps(header.to_dict())
        assert isinstance(header.sampling, str)
        assert isinstance(header.shares_workers | header.groups_inexactly, bool)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a few rounds are done."""
    path = tmp_path_factory.mktemp("run") / "run"
    run_small(path, small_run())
    return path


@pytest.mark.weekly
@fuzzed(250)
@given(data=st.data())
def test_runs_with_damaged_ledgers(
    data: st.DataObject, stopped: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Accounted for and opened to go on with."""
    clean = (stopped / "ledger.sqlite").read_bytes()
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(stopped, folder)
    (folder / "ledger.sqlite").write_bytes(data.draw(damaged(clean)))
    statement = judged(lambda: account(folder).to_dict(), LedgerError, ConfigError)
    assert statement is None or isinstance(statement["epsilon_spent"], float)
    session = judged(lambda: Session.resume(folder), LedgerError, ConfigError)
    if session is not None:
        session.directory.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of which half the rows are done."""
    folder = tmp_path_factory.mktemp("stream")
    run_once(folder, SETTINGS, write_rows(folder / "rows.csv", sample(6), [f"u{i % 4}" for i in range(6)]))
    write_rows(folder / "rows.csv", sample(10), [f"u{i % 4}" for i in range(10)])
    return folder


@pytest.mark.weekly
@pytest.mark.parametrize(("file", "examples"), [("stream.sqlite", 150), ("noise.key", 30)])
def test_streams_with_damaged_state(
    file: str, examples: int, begun: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clean = (begun / "state" / file).read_bytes()

    @fuzzed(examples)
    @given(damaged(clean))
    def go_on(content: bytes) -> None:
        folder = tmp_path_factory.mktemp("damaged") / "stream"
        shutil.copytree(begun, folder)
        (folder / "state" / file).write_bytes(content)

        def whole() -> dict[str, Any]:
            with open_run(folder / "state", SETTINGS, folder / "rows.csv", folder / "out.jsonl") as (
                run,
                reader,
            ):
                run.feed(reader)
                return run.conclude()

        statement = judged(whole, ValueError)
        assert statement is None or statement["rounds"] == 12
        shutil.rmtree(folder)

    go_on()
