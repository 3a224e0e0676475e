"""What may be public of a statement depends on nothing that the record of participation holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.amplified_runs import keys
from support.headers import FACTORIZATION, make_header, read, record
from support.small_runs import small_run

from fedmf.accounting.queries import SecondStream
from fedmf.accounting.rounding import at_least
from fedmf.noise.key import NoiseKey
from fedmf.runs.directory import RunHeader
from fedmf.runs.run_plan import plan_of
from fedmf.statements.statement import OPERATORS, PrivacyStatement

BUSY = [["ann-7f3", "bob-7f3"], ["eve-7f3"], [], [], ["ann-7f3", "bob-7f3"], []]
IDLE = [[], [], [], ["zoe-7f3"], [], []]
INPUTS = ({"name": "classes", "value": "0 to 9", "source": "configuration"},)


def pair_header() -> RunHeader:
    second = SecondStream("per-user", "diagonal", 3, 3, 0.5, "cgd", {"lambda": 0.8}, FACTORIZATION)
    return make_header(second=second, sensitivity_value=10.0, public_inputs=INPUTS)


def amplified_header(accountant: str) -> RunHeader:
    run = small_run(None, **keys(accountant))
    optimizer = run.optimizer_source.build([(3,)], run.cohorts.rounds)
    plan = plan_of(run, optimizer, 3)
    return RunHeader.of(run, plan, NoiseKey.from_seed(3), (("w", (3,)),))


def published(
    folder: Path, header: RunHeader, cohorts: list[list[str]]
) -> tuple[PrivacyStatement, str, PrivacyStatement]:
    folder.mkdir()
    record(folder / "ledger.sqlite", header, cohorts)
    statement = read(folder / "ledger.sqlite")
    shown = PrivacyStatement(json.loads(statement.public().to_json()))
    return shown, shown.render_text(), statement


HEADERS = {
    "plain": make_header,
    "pair": pair_header,
    "amplified": lambda: amplified_header("balls-in-bins"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_ledgers_that_differ_in_participation_alone_publish_the_same(
    tmp_path: Path, kind: str
) -> None:
    header = HEADERS[kind]()
    shown, text, busy = published(tmp_path / "busy", header, BUSY)
    other, other_text, idle = published(tmp_path / "idle", header, IDLE)
    assert (shown, text) == (other, other_text)
    differing = {name for name, value in busy.to_dict().items() if value != idle.to_dict()[name]}
    assert differing <= set(OPERATORS)
    assert {
        "epsilon_spent",
        "users_participated",
        "mu_spent",
        "actual_max_participations",
    } <= differing
    assert busy.to_dict()["not_private"] == list(OPERATORS)
    for content in (shown.to_json(), text):
        for word in ("spent", "not private", "7f3"):
            assert word not in content, word
    assert shown.keys() == busy.to_dict().keys() - {*OPERATORS, "not_private"}
    assert shown["epsilon"] == busy["epsilon"]
    assert at_least(shown["epsilon"]) in text
